// The Copy transport on real threads: random moves against a plain map, and
// its end while pieces run.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/pool_executor.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "tests/support/medium/fault_medium.h"
#include "tests/support/medium/vector_medium.h"
#include "tests/tiers/mapped/copy_fixture.h"
#include "tiers/copy_transport.h"

namespace terrace {
namespace {

std::unique_ptr<Executor> Pool(int threads) {
  auto executor = MakePoolExecutor(threads, {});
  EXPECT_TRUE(executor.ok()) << executor.status();
  return *std::move(executor);
}

// A thing that happens on one thread and is waited for on another.
class Bell {
 public:
  void Ring() {
    MutexLock lock(mutex_);
    rung_ = true;
    changed_.SignalAll();
  }
  // Whether it rang, since the last Await, within a minute.
  bool Await() {
    MutexLock lock(mutex_);
    const bool rung = SystemClock().Await(
        mutex_, changed_,
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return rung_; },
        SystemClock().Now() + absl::Minutes(1));
    rung_ = false;
    return rung;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool rung_ ABSL_GUARDED_BY(mutex_) = false;
};

// Places of two tiers, each with DRAM of its own; a place has one move at a
// time.
class RandomMoves {
 public:
  explicit RandomMoves(uint32_t seed) : random_(seed) {}

  void Run(int moves) {
    std::atomic<bool> over = false;
    std::thread reader([&] {
      while (!over) {
        const IoPathStats stats = transport_.stats(kFirst);
        EXPECT_LE(stats.in_flight_bytes, stats.in_flight_limit_bytes);
        std::this_thread::yield();
      }
    });
    for (int begun = 0; begun < moves || !under_way_.empty();) {
      const int place = Draw(kPlaces);
      if (begun < moves && !under_way_.contains(place)) {
        BeginAt(place);
        ++begun;
      } else if (Draw(4) == 0) {
        Disturb(place);
      } else if (begun == moves || Draw(2) == 0) {
        ASSERT_TRUE(bell_.Await()) << "a move has not ended";
        Poll();
      }
    }
    over = true;
    reader.join();
    EXPECT_EQ(transport_.pending(), 0);
    EXPECT_GT(whole_, moves / 2);
  }

 private:
  static constexpr int kPlaces = 8;
  static constexpr int64_t kPlaceBytes = kMiB + kMiB / 2;

  int Draw(int below) { return static_cast<int>(random_() % below); }
  static TierId TierOf(int place) { return place % 2 == 0 ? kFirst : kSecond; }
  static std::byte* BytesAt(std::vector<std::byte>& bytes, int place) {
    return bytes.data() + place * kPlaceBytes;
  }
  Edge EdgeOf(int place) const {
    const bool up = under_way_.at(place).up;
    return up ? Edge{TierOf(place), kDramTier} : Edge{kDramTier, TierOf(place)};
  }

  // The bytes of a place are all its value; what was not wholly written has
  // none.
  void BeginAt(int place) {
    const bool up = values_.contains(place) && Draw(2) == 0;
    const int64_t size =
        up ? sizes_[place] : 1 + Draw(static_cast<int>(kPlaceBytes));
    under_way_[place] = {up, next_value_++};
    if (!up) {
      values_.erase(place);
      sizes_[place] = size;
    }
    const std::byte value{static_cast<unsigned char>(under_way_[place].value)};
    std::fill_n(BytesAt(dram_, place), size, value);
    Move move =
        MoveOf(static_cast<uint64_t>(place), EdgeOf(place), place * kPlaceBytes,
               size, dram_, static_cast<IoClass>(Draw(kIoClasses)));
    transport_.Begin(move);
  }
  void Disturb(int place) {
    if (!under_way_.contains(place)) return;
    const auto tag = static_cast<uint64_t>(place);
    if (Draw(2) == 0) {
      transport_.Promote(EdgeOf(place), tag, IoClass::kDemand);
    } else {
      transport_.Cancel(EdgeOf(place), tag);
    }
  }
  void Poll() {
    std::vector<Moved> moved;
    transport_.Poll(&moved);
    for (const Moved& each : moved) {
      const int place = static_cast<int>(each.tag);
      ASSERT_TRUE(under_way_.contains(place)) << "ended twice";
      const UnderWay was = under_way_.at(place);
      under_way_.erase(place);
      if (!each.status.ok()) {
        EXPECT_TRUE(absl::IsCancelled(each.status)) << each.status;
        continue;
      }
      ++whole_;
      if (!was.up) values_[place] = was.value;
      Check(place);
    }
  }
  // Medium and DRAM hold the value.
  void Check(int place) {
    const std::byte value{static_cast<unsigned char>(values_.at(place))};
    auto& medium = TierOf(place) == kFirst ? first_ : second_;
    for (const std::byte* bytes :
         {BytesAt(dram_, place), BytesAt(medium.bytes(), place)}) {
      const auto size = static_cast<size_t>(sizes_[place]);
      // All are as the first: each as the one before it.
      ASSERT_TRUE(bytes[0] == value &&
                  std::memcmp(bytes, bytes + 1, size - 1) == 0)
          << "place " << place;
    }
  }

  struct UnderWay {
    bool up = false;
    int value = 0;
  };

  std::minstd_rand random_;
  VectorMedium first_{"first", kPlaces* kPlaceBytes};
  VectorMedium second_{"second", kPlaces* kPlaceBytes};
  std::vector<std::byte> dram_ = std::vector<std::byte>(kPlaces * kPlaceBytes);
  std::map<int, int> values_;  // by place
  std::map<int, int64_t> sizes_;
  std::map<int, UnderWay> under_way_;
  int next_value_ = 0;
  int whole_ = 0;
  Bell bell_;
  std::unique_ptr<Executor> executor_ = Pool(3);
  CopyTransport transport_{{{kFirst, &first_}, {kSecond, &second_}},
                           *executor_,
                           SystemClock(),
                           [this] { bell_.Ring(); }};
};

TEST(CopyThreadsTest, RandomMovesAgreeWithAMap) {
  for (const uint32_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(seed);
    RandomMoves(seed).Run(200);
  }
}

// Each waits, in its one piece, for the other: only possible at one time.
TEST(CopyThreadsTest, TwoMovesOfAClassAreUnderWayAtOnce) {
  VectorMedium bytes("first", 2 * kMiB);
  FaultMedium medium(bytes);
  Bell came[2];
  Bell ended;
  bool met[2] = {};
  medium.OnCall([&](const MediumCall& call) {
    const int self = call.offset == 0 ? 0 : 1;
    came[self].Ring();
    met[self] = came[1 - self].Await();
  });
  std::vector<std::byte> dram(2 * kMiB);
  const auto executor = Pool(2);
  CopyTransport transport({{kFirst, &medium}}, *executor, SystemClock(),
                          [&] { ended.Ring(); });
  for (const uint64_t tag : {0u, 1u}) {
    transport.Begin(MoveOf(tag, {kFirst, kDramTier},
                           static_cast<int64_t>(tag) * kMiB, 4096, dram,
                           IoClass::kDemand));
  }
  std::vector<Moved> moved;
  while (moved.size() < 2) {
    ASSERT_TRUE(ended.Await());
    transport.Poll(&moved);
  }
  EXPECT_TRUE(met[0] && met[1]);
}

TEST(CopyThreadsTest, DestroyedWhileAPieceRunsItNeverWakesAgain) {
  VectorMedium bytes("first", 8 * kMiB);
  FaultMedium medium(bytes);
  Bell began;
  Bell go_on;
  medium.OnCall([&](const MediumCall&) {
    began.Ring();
    EXPECT_TRUE(go_on.Await());
  });
  std::vector<std::byte> dram(8 * kMiB, std::byte{9});
  auto executor = Pool(1);
  {
    // Gone with the transport: a wake after it would be seen by the sanitisers.
    auto wakes = std::make_unique<int>(0);
    CopyTransport transport({{kFirst, &medium}}, *executor, SystemClock(),
                            [&wakes = *wakes] { ++wakes; });
    transport.Begin(
        MoveOf(1, {kDramTier, kFirst}, 0, 8 * kMiB, dram, IoClass::kDemand));
    EXPECT_TRUE(began.Await());
  }
  go_on.Ring();
  executor.reset();
  EXPECT_EQ(medium.calls().size(), 1u);
  EXPECT_EQ(bytes.bytes()[kMiB - 1], std::byte{9});
  EXPECT_EQ(bytes.bytes()[kMiB], std::byte{0});
}

}  // namespace
}  // namespace terrace
