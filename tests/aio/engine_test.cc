// One contract for every engine: what IoQueue relies on.
#include "aio/engine.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <string_view>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/aio/test_files.h"

namespace terrace {
namespace {

constexpr int64_t kFileBytes = 1 << 20;
constexpr int64_t kBlock = 4096;

class EngineContract : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    made_ = MakeEngineUnderTest(GetParam(), 2, kFileBytes, SystemClock());
    if (made_.engine == nullptr) GTEST_SKIP() << made_.reason_to_skip;
    for (const int descriptor : made_.descriptors) {
      absl::StatusOr<int> file = engine().AddFile(descriptor);
      ASSERT_TRUE(file.ok()) << file.status();
      files_.push_back(*file);
    }
  }

  IoEngine& engine() { return *made_.engine; }

  IoRequest Request(IoDirection direction, std::byte* data, int64_t offset,
                    int64_t size_bytes, uint64_t tag, int file = 0) {
    return {files_[file], direction, data, offset, size_bytes, tag};
  }

  // Submits all, polls until each has completed once; by tag.
  std::map<uint64_t, int64_t> RunAll(const std::vector<IoRequest>& requests) {
    std::map<uint64_t, int64_t> results;
    size_t submitted = 0;
    const absl::Time limit = SystemClock().Now() + absl::Seconds(30);
    while (results.size() < requests.size()) {
      submitted +=
          engine().Submit(absl::MakeConstSpan(requests).subspan(submitted));
      IoResult polled[7];
      const int n = engine().Poll(absl::MakeSpan(polled));
      for (int i = 0; i < n; ++i) {
        const bool is_new =
            results.emplace(polled[i].tag, polled[i].result).second;
        EXPECT_TRUE(is_new) << "completed twice: " << polled[i].tag;
      }
      if (n == 0 && results.size() < requests.size()) engine().Wait(limit);
      if (SystemClock().Now() > limit) {
        ADD_FAILURE() << "only " << results.size() << " completed";
        break;
      }
    }
    return results;
  }

  int64_t RunOne(const IoRequest& request) {
    return RunAll({request}).begin()->second;
  }

  EngineUnderTest made_;
  std::vector<int> files_;
};

TEST_P(EngineContract, ReadsBackWhatWasWritten) {
  AlignedBuffer written(kFileBytes);
  written.FillRandom(7);
  AlignedBuffer read(kFileBytes);
  EXPECT_EQ(
      RunOne(Request(IoDirection::kWrite, written.data(), 0, kFileBytes, 1)),
      kFileBytes);
  EXPECT_EQ(RunOne(Request(IoDirection::kRead, read.data(), 0, kFileBytes, 2)),
            kFileBytes);
  EXPECT_EQ(read.Copy(0, kFileBytes), written.Copy(0, kFileBytes));
}

TEST_P(EngineContract, MovesSeveralLargeOnesOfOneSubmission) {
  AlignedBuffer written(2 * kFileBytes);
  written.FillRandom(13);
  AlignedBuffer read(2 * kFileBytes);
  for (const IoDirection direction :
       {IoDirection::kWrite, IoDirection::kRead}) {
    AlignedBuffer& buffer = direction == IoDirection::kRead ? read : written;
    // And a small one last, which goes with no other.
    const auto results =
        RunAll({Request(direction, buffer.data(), 0, kFileBytes, 1, 0),
                Request(direction, buffer.data() + kFileBytes, kBlock,
                        kFileBytes - kBlock, 2, 1),
                Request(direction, buffer.data() + 2 * kFileBytes - kBlock, 0,
                        kBlock, 3, 1)});
    EXPECT_EQ(results,
              (std::map<uint64_t, int64_t>{
                  {1, kFileBytes}, {2, kFileBytes - kBlock}, {3, kBlock}}));
  }
  EXPECT_EQ(read.Copy(0, 2 * kFileBytes), written.Copy(0, 2 * kFileBytes));
}

TEST_P(EngineContract, KeepsFilesApart) {
  AlignedBuffer ones(kBlock);
  AlignedBuffer twos(kBlock);
  ones.Fill(1);
  twos.Fill(2);
  RunAll({Request(IoDirection::kWrite, ones.data(), 8192, kBlock, 1, 0),
          Request(IoDirection::kWrite, twos.data(), 8192, kBlock, 2, 1)});
  AlignedBuffer read(2 * kBlock);
  RunAll(
      {Request(IoDirection::kRead, read.data(), 8192, kBlock, 3, 0),
       Request(IoDirection::kRead, read.data() + kBlock, 8192, kBlock, 4, 1)});
  EXPECT_EQ(read.data()[0], std::byte{1});
  EXPECT_EQ(read.data()[kBlock - 1], std::byte{1});
  EXPECT_EQ(read.data()[kBlock], std::byte{2});
}

TEST_P(EngineContract, CompletesEachOfManyOnceAndNeverOverflows) {
  constexpr int kCount = 2000;  // more than any queue holds
  AlignedBuffer buffer(kFileBytes);
  buffer.FillRandom(11);
  RunOne(Request(IoDirection::kWrite, buffer.data(), 0, kFileBytes, 1));
  AlignedBuffer read(kCount * kBlock);
  std::vector<IoRequest> requests;
  for (int i = 0; i < kCount; ++i) {
    requests.push_back(Request(IoDirection::kRead, read.data() + i * kBlock,
                               i * kBlock % kFileBytes, kBlock, 100 + i));
  }
  const auto results = RunAll(requests);
  ASSERT_EQ(results.size(), requests.size());
  for (int i = 0; i < kCount; ++i) {
    EXPECT_EQ(results.at(100 + i), kBlock);
    ASSERT_EQ(read.Copy(i * kBlock, kBlock),
              buffer.Copy(i * kBlock % kFileBytes, kBlock));
  }
}

TEST_P(EngineContract, ReadsShortAtTheEndAndZeroBeyondIt) {
  AlignedBuffer buffer(2 * kBlock);
  EXPECT_EQ(RunOne(Request(IoDirection::kRead, buffer.data(),
                           kFileBytes - kBlock, 2 * kBlock, 1)),
            kBlock);
  EXPECT_EQ(
      RunOne(Request(IoDirection::kRead, buffer.data(), kFileBytes, kBlock, 2)),
      0);
}

TEST_P(EngineContract, ReportsAnUnknownFileAsEbadf) {
  AlignedBuffer buffer(kBlock);
  EXPECT_EQ(RunOne({99, IoDirection::kRead, buffer.data(), 0, kBlock, 2}),
            -EBADF);
}

TEST_P(EngineContract, MovesBytesOfARegisteredArenaAndOfOthers) {
  AlignedBuffer arena(4 * kBlock);
  engine().RegisterArena({arena.data(), static_cast<size_t>(2 * kBlock)});
  arena.FillRandom(3);
  const auto written = arena.Copy(0, 4 * kBlock);
  // Inside, across the end, outside.
  RunAll({Request(IoDirection::kWrite, arena.data(), 0, kBlock, 1),
          Request(IoDirection::kWrite, arena.data() + kBlock, kBlock,
                  2 * kBlock, 2),
          Request(IoDirection::kWrite, arena.data() + 3 * kBlock, 3 * kBlock,
                  kBlock, 3)});
  arena.Fill(0);
  const auto results =
      RunAll({Request(IoDirection::kRead, arena.data(), 0, 2 * kBlock, 4),
              Request(IoDirection::kRead, arena.data() + 2 * kBlock, 2 * kBlock,
                      2 * kBlock, 5)});
  EXPECT_THAT(results, testing::ElementsAre(testing::Pair(4, 2 * kBlock),
                                            testing::Pair(5, 2 * kBlock)));
  EXPECT_EQ(arena.Copy(0, 4 * kBlock), written);
}

// What is registered keeps the pages that it had.
TEST_P(EngineContract, MovesBytesOfPagesThatCameAfterTheArenas) {
  constexpr int64_t kHuge = 2 << 20;
  constexpr int64_t kSize = 4 * kBlock;
  AlignedBuffer arena(kHuge + kSize);
  const absl::Span<std::byte> all(arena.data(),
                                  static_cast<size_t>(kHuge + kSize));
  engine().RegisterArena(all);
  for (const int64_t place : {int64_t{0}, kHuge}) {
    std::byte* const part = arena.data() + place;
    std::fill_n(part, kSize, std::byte{7});
    ASSERT_EQ(RunOne(Request(IoDirection::kWrite, part, 0, kSize, 1)), kSize);
    EXPECT_TRUE(engine().UnregisterArena({part, static_cast<size_t>(kSize)}));
    ASSERT_EQ(madvise(part, kSize, MADV_DONTNEED), 0);
    EXPECT_EQ(part[0], std::byte{0});
    ASSERT_EQ(RunOne(Request(IoDirection::kRead, part, 0, kSize, 2)), kSize);
    EXPECT_EQ(part[0], std::byte{7});
    EXPECT_EQ(part[kSize - 1], std::byte{7});
    std::fill_n(part, kSize, std::byte{9});
    ASSERT_EQ(RunOne(Request(IoDirection::kWrite, part, 0, kSize, 3)), kSize);
    AlignedBuffer other(kSize);
    ASSERT_EQ(RunOne(Request(IoDirection::kRead, other.data(), 0, kSize, 4)),
              kSize);
    EXPECT_EQ(other.data()[0], std::byte{9});
    EXPECT_TRUE(engine().UnregisterArena({part, static_cast<size_t>(kSize)}));
  }
  EXPECT_FALSE(engine().info().buffers_registered);
}

// As where the memory has grown behind what was registered.
TEST_P(EngineContract, APartMayReachBeyondTheArena) {
  constexpr int64_t kSize = 4 * kBlock;
  AlignedBuffer arena(3 * kSize);
  engine().RegisterArena({arena.data(), static_cast<size_t>(2 * kSize)});
  std::byte* const part = arena.data() + kSize;
  std::fill_n(part, 2 * kSize, std::byte{7});
  ASSERT_EQ(RunOne(Request(IoDirection::kWrite, part, 0, kSize, 1)), kSize);
  EXPECT_TRUE(engine().UnregisterArena({part, static_cast<size_t>(2 * kSize)}));
  ASSERT_EQ(madvise(part, 2 * kSize, MADV_DONTNEED), 0);
  EXPECT_EQ(part[0], std::byte{0});
  ASSERT_EQ(RunOne(Request(IoDirection::kRead, part, 0, kSize, 2)), kSize);
  EXPECT_EQ(part[0], std::byte{7});
}

// The small pages behind them are registered apart.
TEST_P(EngineContract, MovesBytesOnBothSidesOfAnArenasLastHugePage) {
  constexpr int64_t kHuge = 2 << 20;
  constexpr int64_t kSize = 4 * kBlock;
  constexpr int64_t kPlaces[] = {kHuge - kSize, kHuge - kBlock, kHuge};
  AlignedBuffer arena(kHuge + 2 * kSize);
  engine().RegisterArena(
      {arena.data(), static_cast<size_t>(kHuge + 2 * kSize)});
  AlignedBuffer wanted(kSize);
  AlignedBuffer found(kSize);
  const bool is_file =
      std::string_view(GetParam()).find("memory") == std::string_view::npos;
  for (int i = 0; i < 3; ++i) {
    wanted.Fill(7 + i);
    std::byte* const place = arena.data() + kPlaces[i];
    std::fill_n(place, kSize, std::byte(7 + i));
    ASSERT_EQ(RunOne(Request(IoDirection::kWrite, place, i * kSize, kSize, 1)),
              kSize);
    if (is_file) {
      ASSERT_EQ(pread(made_.descriptors[0], found.data(), kSize, i * kSize),
                kSize);
      EXPECT_EQ(std::memcmp(found.data(), wanted.data(), kSize), 0) << i;
    }
    std::fill_n(place, kSize, std::byte(0));
    ASSERT_EQ(RunOne(Request(IoDirection::kRead, place, i * kSize, kSize, 2)),
              kSize);
    EXPECT_EQ(std::memcmp(place, wanted.data(), kSize), 0) << i;
  }
}

TEST_P(EngineContract, WaitEndsAtItsDeadline) {
  const absl::Time start = SystemClock().Now();
  engine().Wait(start + absl::Milliseconds(5));
  EXPECT_GE(SystemClock().Now() - start, absl::Milliseconds(5));
}

TEST_P(EngineContract, WakeBeforeAWaitIsRememberedAndConsumedOnce) {
  const absl::Time far = SystemClock().Now() + absl::Minutes(10);
  engine().Wake();
  engine().Wake();
  engine().Wait(far);
  EXPECT_LT(SystemClock().Now(), far - absl::Minutes(5));
  const absl::Time start = SystemClock().Now();
  engine().Wait(start + absl::Milliseconds(3));
  EXPECT_GE(SystemClock().Now() - start, absl::Milliseconds(3));
}

TEST_P(EngineContract, WakeSurvivesAPollInBetween) {
  const absl::Time far = SystemClock().Now() + absl::Minutes(10);
  engine().Wait(SystemClock().Now());  // the wake is armed
  engine().Wake();
  IoResult none[1];
  EXPECT_EQ(engine().Poll(absl::MakeSpan(none)), 0);
  engine().Wait(far);
  EXPECT_LT(SystemClock().Now(), far - absl::Minutes(5));
}

TEST_P(EngineContract, AnotherThreadWakesAWaitEveryTime) {
  constexpr int kRounds = 200;
  const absl::Time far = SystemClock().Now() + absl::Minutes(10);
  std::atomic<int> waited = 0;
  std::thread waker([&] {
    for (int i = 0; i < kRounds; ++i) {
      engine().Wake();
      while (waited.load() <= i) std::this_thread::yield();
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    engine().Wait(far);
    waited.store(i + 1);
  }
  waker.join();
  EXPECT_LT(SystemClock().Now(), far - absl::Minutes(5));
}

TEST_P(EngineContract, IsUsedByAThreadThatDidNotMakeIt) {
  AlignedBuffer buffer(kBlock);
  int64_t moved = 0;
  std::thread user([&] {
    moved = RunOne(Request(IoDirection::kRead, buffer.data(), 0, kBlock, 1));
  });
  user.join();
  EXPECT_EQ(moved, kBlock);
}

TEST_P(EngineContract, SaysWhatItIs) {
  EXPECT_FALSE(engine().info().name.empty());
  EXPECT_FALSE(engine().info().reason.empty());
}

TEST_P(EngineContract, DestroysWithRequestsInFlight) {
  AlignedBuffer buffer(kFileBytes);
  std::vector<IoRequest> requests;
  for (int i = 0; i < 16; ++i) {
    requests.push_back(Request(IoDirection::kRead, buffer.data() + i * 65536,
                               i * 65536, 65536, i));
  }
  engine().Submit(requests);
  made_.engine.reset();
}

INSTANTIATE_TEST_SUITE_P(Engines, EngineContract,
                         testing::ValuesIn(kEngineKinds), [](const auto& kind) {
                           return std::string(kind.param);
                         });

TEST(MakeEngine, GivesTheNamedEngine) {
  absl::StatusOr<std::unique_ptr<IoEngine>> threads =
      MakeEngine(EngineKind::kThreads);
  ASSERT_TRUE(threads.ok());
  EXPECT_EQ((*threads)->info().name, "threads");
}

TEST(MakeUringEngine, StepsDownThroughTheFlagsOneByOne) {
  const absl::StatusOr<std::unique_ptr<IoEngine>> all = MakeUringEngine();
  if (!all.ok()) GTEST_SKIP() << all.status();
  const auto reason = [](uint32_t unknown_flags) {
    auto engine = MakeUringEngine(unknown_flags);
    return engine.ok() ? (*engine)->info().reason
                       : std::string(engine.status().message());
  };
  if (reason(0).find("DEFER_TASKRUN") == std::string::npos) {
    GTEST_SKIP() << "an old kernel, which steps down by itself: " << reason(0);
  }
  EXPECT_THAT(reason(kDeferTaskrun),
              testing::StartsWith("COOP_TASKRUN|CQSIZE"));
  // Any flag of a step that is unknown makes the whole step impossible.
  EXPECT_THAT(reason(1U << 12), testing::StartsWith("COOP_TASKRUN|CQSIZE"));
  EXPECT_THAT(reason(kDeferTaskrun | kCoopTaskrun),
              testing::StartsWith("no flags"));
  EXPECT_THAT(reason(kCoopTaskrun), testing::HasSubstr("DEFER_TASKRUN"));
}

TEST(MakeEngine, FullFileSystemsAndReadOnlyDescriptorsAreErrnos) {
  TemporaryFile file(kFileBytes);
  const int read_only = open(file.name().c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(read_only, 0);
  for (const EngineKind kind : {EngineKind::kAuto, EngineKind::kThreads}) {
    auto engine = *MakeEngine(kind);
    AlignedBuffer buffer(kBlock);
    const int added = *engine->AddFile(read_only);
    const IoRequest request{
        added, IoDirection::kWrite, buffer.data(), 0, kBlock, 5};
    ASSERT_EQ(engine->Submit(absl::MakeConstSpan(&request, 1)), 1);
    IoResult result;
    while (engine->Poll(absl::MakeSpan(&result, 1)) == 0) {
      engine->Wait(absl::InfiniteFuture());
    }
    EXPECT_EQ(result.result, -EBADF) << engine->info().name;
  }
  close(read_only);
}

}  // namespace
}  // namespace terrace
