#include "libtorch/hook/life/storage_lives.h"

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/libtorch/hook/life/fake_storage.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kPage = 4096;
constexpr absl::Duration kNone = absl::ZeroDuration();

class StorageLivesTest : public testing::Test {
 protected:
  using Storage = std::shared_ptr<FakeStorage>;

  StorageLivesTest()
      : world_(TestWorld::kMemory, {.budget_bytes = 16 * kPage}),
        hook_(world_.runtime(), index_, {.window_bytes = 16 * kPage}) {}

  // Of one page, filled with the seed.
  Storage Make(const std::string& name, uint8_t seed) {
    auto storage = std::make_shared<FakeStorage>(name, kPage, hook_.window());
    WritePattern({storage->data(), kPage}, seed);
    return storage;
  }
  Storage Added(const std::string& name, uint8_t seed) {
    Storage storage = Make(name, seed);
    const absl::Status added = lives().Add({storage});
    EXPECT_TRUE(added.ok()) << added;
    return storage;
  }
  bool Holds(const Storage& storage, uint8_t seed) {
    const auto used = hook_.Begin({storage.get()});
    return HasPattern({storage->data(), kPage}, seed);
  }
  bool IsFound(const Storage& storage) {
    return index_.registry().Find(storage->address()) != nullptr;
  }
  // The storage lives on, and has left.
  void HasOtherBytes(const Storage& storage) {
    storage->MarkGone();
    lives().NoteDied(storage);
    lives().Sweep();
    EXPECT_FALSE(IsFound(storage));
  }
  StorageLives& lives() { return hook_.lives(); }

  TestRuntime world_;
  FakeIndex index_;
  FakeHook hook_;
};

TEST_F(StorageLivesTest, WhatIsAddedIsManagedAndCounted) {
  const Storage a = Added("a", 1);
  const Storage b = Added("b", 2);
  EXPECT_EQ(lives().count(), 2);
  EXPECT_EQ(lives().size_bytes(), 2 * kPage);
  EXPECT_EQ(lives().Find(a->address()), a);
  EXPECT_EQ(a->word().life(), Life::kManaged);
  EXPECT_TRUE(Holds(a, 1));
  EXPECT_TRUE(Holds(b, 2));
}

TEST_F(StorageLivesTest, OneThatIsThereIsNotAddedAgain) {
  const Storage a = Added("a", 1);
  EXPECT_TRUE(absl::IsAborted(lives().Add({a})));
  FakeHook other(world_.runtime(), index_, {.window_bytes = 4 * kPage});
  const Storage b = Make("b", 2);
  const absl::Status added = other.lives().Add(
      {b, std::make_shared<FakeStorage>("a", kPage, other.window(), a.get())});
  EXPECT_TRUE(absl::IsFailedPrecondition(added)) << added;
  EXPECT_THAT(std::string(added.message()), HasSubstr("'a' is managed by"));
  EXPECT_EQ(other.lives().count(), 0);
  EXPECT_FALSE(IsFound(b));
  EXPECT_TRUE(Holds(a, 1));
}

TEST_F(StorageLivesTest, AnAddThatFailsLeavesAllAsTheyWere) {
  const Storage a = Make("a", 1);
  const Storage same_name = Make("a", 2);
  EXPECT_TRUE(absl::IsAlreadyExists(lives().Add({a, same_name})));
  for (const Storage& each : {a, same_name}) {
    EXPECT_FALSE(IsFound(each));
    EXPECT_EQ(each->word().life(), Life::kGone);
  }
  EXPECT_EQ(lives().count(), 0);
  EXPECT_TRUE(HasPattern({a->data(), kPage}, 1));
}

TEST_F(StorageLivesTest, ACloseGivesAllTheirBytes) {
  std::vector<Storage> storages;
  for (uint8_t i = 0; i < 12; ++i) {
    storages.push_back(Added("s" + std::to_string(i), i));
  }
  ASSERT_TRUE(lives().Close({}).ok());
  for (uint8_t i = 0; i < 12; ++i) {
    EXPECT_FALSE(IsFound(storages[i]));
    EXPECT_TRUE(HasPattern({storages[i]->data(), kPage}, i)) << int{i};
  }
  EXPECT_EQ(lives().count(), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(lives().Add({Make("late", 0)})));
  EXPECT_TRUE(lives().Close({}).ok());
}

TEST_F(StorageLivesTest, ACloseOfWhatIsInUseChangesNothing) {
  const Storage a = Added("a", 1);
  const Storage b = Added("b", 2);
  auto found = hook_.Begin({b.get()});
  for (const bool restore : {true, false}) {
    const absl::Status closed =
        lives().Close({.restore = restore, .patience = absl::Milliseconds(5)});
    EXPECT_TRUE(absl::IsFailedPrecondition(closed)) << closed;
    EXPECT_THAT(std::string(closed.message()), HasSubstr("'b' is leased or"));
  }
  EXPECT_TRUE(Holds(a, 1));
  EXPECT_TRUE(Holds(b, 2));
  EXPECT_FALSE(lives().closed());
  found.reset();
  EXPECT_TRUE(lives().Close({.patience = kNone}).ok());
  EXPECT_TRUE(HasPattern({b->data(), kPage}, 2));
}

TEST_F(StorageLivesTest, ACloseDoesNotWaitForALease) {
  const Storage a = Added("a", 1);
  auto found = hook_.Begin({a.get()});
  lives().BeginLease(*a);
  const absl::Status closed = lives().Close({.patience = absl::Hours(1)});
  EXPECT_TRUE(absl::IsFailedPrecondition(closed)) << closed;
  lives().EndLease(*a);
  found.reset();
  EXPECT_TRUE(lives().Close({}).ok());
}

// What computes ends; what would begin waits, and finds what was closed.
TEST_F(StorageLivesTest, ACloseWaitsForTheOperationsThatThereAre) {
  const Storage a = Added("a", 1);
  auto found = hook_.Begin({a.get()});
  auto closed = std::async(std::launch::async, [this] {
    return lives().Close({.patience = absl::Hours(1)});
  });
  while (a->word().life() == Life::kManaged) std::this_thread::yield();
  auto next = std::async(std::launch::async,
                         [&] { return hook_.Begin({a.get()})->empty(); });
  EXPECT_EQ(next.wait_for(std::chrono::milliseconds(20)),
            std::future_status::timeout);
  found.reset();
  EXPECT_TRUE(closed.get().ok());
  EXPECT_TRUE(next.get()) << "it is managed no more";
  EXPECT_TRUE(HasPattern({a->data(), kPage}, 1));
}

// An operation within another takes more while a close waits for the outer one.
TEST_F(StorageLivesTest, WhatHoldsPinsIsLetTakeMore) {
  const Storage a = Added("a", 1);
  const Storage b = Added("b", 2);
  auto outer = hook_.Begin({a.get()});
  auto closed = std::async(std::launch::async, [this] {
    return lives().Close({.patience = absl::Hours(1)});
  });
  while (b->word().life() == Life::kManaged) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) {
    const auto inner = hook_.Begin({b.get()});
    ASSERT_EQ(b->word().life(), Life::kStopping);
    ASSERT_FALSE(inner->empty());
  }
  outer.reset();
  EXPECT_TRUE(closed.get().ok());
}

TEST_F(StorageLivesTest, WhatDiedGoesWhenNothingHasIt) {
  const Storage a = Added("a", 1);
  auto found = hook_.Begin({a.get()});
  a->MarkGone();
  lives().NoteDied(a);
  lives().Sweep();
  EXPECT_EQ(lives().count(), 1);
  found.reset();
  lives().Sweep();
  EXPECT_EQ(lives().count(), 0);
  EXPECT_FALSE(IsFound(a));
  Added("a", 3);  // its name is free
}

TEST_F(StorageLivesTest, WhatDiesOfItsEvictionGoesWithTheNextSweep) {
  const Storage a = Added("a", 1);
  a->ends_with_its_bytes = &lives();
  EXPECT_EQ(hook_.window().EvictAll(), 1);
  EXPECT_EQ(hook_.window().stats().used_bytes, 0);
  lives().Sweep();
  EXPECT_EQ(lives().count(), 0);
  EXPECT_FALSE(IsFound(a));
  Added("a", 3);  // its name is free
}

// Its last reference is that of the thread that evicts it.
TEST_F(StorageLivesTest, ANameIsFreeOnceTheEvictionOfWhatDiedHasEnded) {
  const Storage a = Added("a", 1);
  ASSERT_TRUE(a->word().BeginEvict());
  a->MarkGone();
  lives().NoteDied(a);
  auto added = std::async(std::launch::async, [this] { Added("a", 2); });
  EXPECT_EQ(added.wait_for(std::chrono::milliseconds(20)),
            std::future_status::timeout);
  a->word().End(Residency::kResident);
  added.get();
  EXPECT_EQ(lives().count(), 1);
}

TEST_F(StorageLivesTest, ANameOfOneThatLivesIsRefusedOnceItIsThere) {
  const Storage a = Added("a", 1);
  EXPECT_TRUE(absl::IsAlreadyExists(lives().Add({Make("a", 2)})));
  ASSERT_TRUE(a->word().BeginEvict());
  auto added = std::async(std::launch::async,
                          [this] { return lives().Add({Make("a", 2)}); });
  a->word().End(Residency::kResident);
  EXPECT_TRUE(absl::IsAlreadyExists(added.get()));
  EXPECT_TRUE(Holds(a, 1));
}

TEST_F(StorageLivesTest, ACloseWithoutRestoringRefusesAll) {
  const Storage a = Added("a", 1);
  ASSERT_TRUE(lives().Close({.restore = false}).ok());
  EXPECT_TRUE(a->is_refused());
  EXPECT_FALSE(IsFound(a));
}

TEST_F(StorageLivesTest, WhatHasGoneIsKeptAsLongAsItsStorageLives) {
  std::weak_ptr<FakeStorage> kept;
  {
    Storage a = Added("a", 1);
    kept = a;
    HasOtherBytes(a);
    FakeStorage& storage = *a;
    a.reset();
    EXPECT_FALSE(kept.expired()) << "a thread may have just found it";
    storage.has_died = true;
  }
  for (int i = 0; i < 4; ++i) {
    const Storage other = Added("other", 2);
    HasOtherBytes(other);
    other->has_died = true;
  }
  EXPECT_TRUE(kept.expired());
}

}  // namespace
}  // namespace terrace
