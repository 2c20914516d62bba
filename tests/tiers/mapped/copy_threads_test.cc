// The Copy transport on real threads: random moves against a plain map, and
// its end while pieces run.
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "gtest/gtest.h"
#include "kernels/pool_executor.h"
#include "tests/support/medium/fault_medium.h"
#include "tests/support/medium/vector_medium.h"
#include "tests/support/random_moves.h"
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

TEST(CopyThreadsTest, RandomMovesAgreeWithAMap) {
  constexpr int64_t kBytes = RandomMoves::kPlaces * RandomMoves::kPlaceBytes;
  for (const uint32_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(seed);
    VectorMedium first("first", kBytes);
    VectorMedium second("second", kBytes);
    Bell bell;
    const auto executor = Pool(3);
    CopyTransport transport({{kFirst, &first}, {kSecond, &second}}, *executor,
                            SystemClock(), [&] { bell.Ring(); });
    std::atomic<bool> over = false;
    std::thread reader([&] {
      while (!over) {
        const IoPathStats stats = transport.stats(kFirst);
        EXPECT_LE(stats.in_flight_bytes, stats.in_flight_limit_bytes);
        std::this_thread::yield();
      }
    });
    RandomMoves moves(transport, {kFirst, kSecond}, seed,
                      [&](absl::FunctionRef<bool()> done) {
                        while (!done()) {
                          if (!bell.Await()) return false;
                        }
                        return true;
                      });
    moves.Run(200);
    over = true;
    reader.join();
    moves.ForEachWhole([&](int place, std::byte value, int64_t size_bytes) {
      auto& medium = moves.TierOf(place) == kFirst ? first : second;
      const std::byte* const bytes =
          medium.bytes().data() + place * RandomMoves::kPlaceBytes;
      EXPECT_TRUE(RandomMoves::AllAre(value, bytes, size_bytes)) << place;
    });
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
