#include "libtorch/hook/storage_registry.h"

#include <atomic>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

// Any distinct addresses do: the registry follows none.
struct Addresses {
  explicit Addresses(size_t count) : bytes(count * kApart) {}
  static constexpr size_t kApart = 96;

  const void* key(size_t i) const { return bytes.data() + i * kApart; }
  StorageLife* storage(size_t i) {
    return reinterpret_cast<StorageLife*>(bytes.data() + i * kApart + 8);
  }
  std::vector<char> bytes;
};

TEST(StorageRegistry, FindsWhatAMapFinds) {
  Addresses addresses(500);
  StorageRegistry registry;
  std::map<const void*, StorageLife*> expected;
  std::mt19937 random(3);
  for (int round = 0; round < 20'000; ++round) {
    const size_t i = random() % 500;
    const void* const key = addresses.key(i);
    if (expected.contains(key)) {
      registry.Erase(key);
      expected.erase(key);
    } else if (random() % 3 != 0) {
      registry.Insert(key, addresses.storage(i));
      expected[key] = addresses.storage(i);
    } else {
      registry.Erase(key);  // of what is not there
    }
    const size_t asked = random() % 500;
    const auto found = expected.find(addresses.key(asked));
    EXPECT_EQ(registry.Find(addresses.key(asked)),
              found == expected.end() ? nullptr : found->second);
  }
  EXPECT_EQ(registry.size(), expected.size());
  for (size_t i = 0; i < 500; ++i) {
    const auto found = expected.find(addresses.key(i));
    EXPECT_EQ(registry.Find(addresses.key(i)),
              found == expected.end() ? nullptr : found->second);
  }
}

// As storages of one step that come and go in the next.
TEST(StorageRegistry, IsNoLargerForWhatHasGone) {
  Addresses addresses(10'000);
  StorageRegistry registry;
  for (size_t i = 0; i < 100; ++i) {
    registry.Insert(addresses.key(i), addresses.storage(i));
  }
  const size_t places = registry.places();
  EXPECT_GE(places, 4u * 100);
  EXPECT_LE(places, 16u * 100);
  for (size_t i = 100; i < 1'000'000; ++i) {
    registry.Erase(addresses.key((i - 100) % 10'000));
    registry.Insert(addresses.key(i % 10'000), addresses.storage(i % 10'000));
  }
  EXPECT_EQ(registry.size(), 100u);
  EXPECT_EQ(registry.places(), places);
  for (size_t i = 0; i < 10'000; ++i) {
    EXPECT_EQ(registry.Find(addresses.key(i)),
              i < 9'900 ? nullptr : addresses.storage(i));
  }
}

TEST(StorageRegistry, IsFoundWhileOthersComeAndGo) {
  Addresses addresses(2'000);
  StorageRegistry registry;
  for (size_t i = 0; i < 10; ++i) {
    registry.Insert(addresses.key(i), addresses.storage(i));
  }
  std::atomic<bool> done = false;
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 2; ++reader) {
    readers.emplace_back([&] {
      while (!done) {
        for (size_t i = 0; i < 10; ++i) {
          ASSERT_EQ(registry.Find(addresses.key(i)), addresses.storage(i));
        }
        ASSERT_EQ(registry.Find(&done), nullptr);
      }
    });
  }
  for (int round = 0; round < 5; ++round) {
    for (size_t i = 10; i < 2'000; ++i) {
      registry.Insert(addresses.key(i), addresses.storage(i));
    }
    for (size_t i = 10; i < 2'000; ++i) registry.Erase(addresses.key(i));
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
}

// A look that finds its key may be overtaken by one that takes its place.
TEST(StorageRegistry, NeverFindsAnotherInItsPlace) {
  constexpr size_t kKeys = 300;
  Addresses addresses(kKeys);
  StorageRegistry registry;
  std::atomic<bool> done = false;
  std::thread reader([&] {
    while (!done) {
      for (size_t i = 0; i < kKeys; ++i) {
        const StorageLife* const found = registry.Find(addresses.key(i));
        ASSERT_TRUE(found == nullptr || found == addresses.storage(i));
      }
    }
  });
  for (int round = 0; round < 100'000; ++round) {
    for (size_t i = 0; i < kKeys; ++i) {
      registry.Insert(addresses.key(i), addresses.storage(i));
      registry.Erase(addresses.key(i));
    }
  }
  done = true;
  reader.join();
}

}  // namespace
}  // namespace terrace
