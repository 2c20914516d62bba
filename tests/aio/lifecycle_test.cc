// What a long life must not do: hang at its end, or grow.
#include <dirent.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "aio/io_paths.h"
#include "gtest/gtest.h"
#include "tests/aio/test_files.h"
#include "tests/support/live_threads.h"

namespace terrace {
namespace {

constexpr int64_t kBlock = 4096;
constexpr int64_t kFileBytes = 64 * kBlock;

int EntriesOf(const char* folder) {
  int entries = 0;
  DIR* const listing = opendir(folder);
  while (listing != nullptr && readdir(listing) != nullptr) ++entries;
  if (listing != nullptr) closedir(listing);
  return entries;
}

int64_t PinnedKib() {
  std::ifstream status("/proc/self/status");
  int64_t kib = 0;
  for (std::string word; status >> word;) {
    if (word == "VmPin:" || word == "VmLck:") {
      int64_t value = 0;
      status >> value;
      kib += value;
    }
  }
  return kib;
}

struct Footprint {
  int descriptors = EntriesOf("/proc/self/fd");
  int64_t threads = LiveThreads();
  int64_t pinned_kib = PinnedKib();
};

// The kernel ends a closed ring, and what it has pinned, behind the call.
void ExpectNoGrowth(const Footprint& before) {
  const absl::Time limit = SystemClock().Now() + absl::Seconds(30);
  Footprint after;
  while (after.pinned_kib > before.pinned_kib && SystemClock().Now() < limit) {
    std::this_thread::yield();
    after = Footprint();
  }
  EXPECT_LE(after.descriptors, before.descriptors);
  EXPECT_LE(after.threads, before.threads);
  EXPECT_LE(after.pinned_kib, before.pinned_kib);
}

class Lifecycle : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Engines, Lifecycle,
                         testing::Values("io_uring", "threads"),
                         [](const auto& kind) {
                           return std::string(kind.param);
                         });

// Turns the crank until nothing is pending; counts how each ended.
void Drain(IoPaths& io, int* ended, int* cancelled) {
  std::vector<Completion> completions;
  io.Poll(&completions);  // what a Cancel ended is no longer pending
  while (io.pending() > 0) {
    io.Wait(SystemClock().Now() + absl::Seconds(30));
    io.Poll(&completions);
  }
  for (const Completion& completion : completions) {
    ++*ended;
    const bool is_cancelled =
        completion.status.code() == absl::StatusCode::kCancelled;
    if (is_cancelled) ++*cancelled;
    EXPECT_TRUE(completion.status.ok() || is_cancelled) << completion.status;
  }
}

TEST_P(Lifecycle, AHundredThousandTransfersLeaveNothingBehind) {
  EngineUnderTest made =
      MakeEngineUnderTest(GetParam(), 1, kFileBytes, SystemClock());
  if (made.engine == nullptr) GTEST_SKIP() << made.reason_to_skip;
  constexpr int kBatches = 1000;
  constexpr int kBatch = 100;
  AlignedBuffer buffer(kBatch * kBlock);  // one for each in flight
  IoPaths io(std::move(made.engine), SystemClock());
  io.RegisterArena({buffer.data(), static_cast<size_t>(kBatch * kBlock)});
  const int path = *io.AddPath("file", made.descriptors[0], {});
  std::mt19937 random(31);
  int ended = 0;
  int cancelled = 0;
  Footprint before;
  for (int batch = 0; batch < kBatches; ++batch) {
    for (uint64_t i = 0; i < kBatch; ++i) {
      const int64_t at = static_cast<int64_t>(random() % 64) * kBlock;
      io.Enqueue(path, {i % 2 == 0 ? IoDirection::kRead : IoDirection::kWrite,
                        static_cast<IoClass>(i % kIoClasses),
                        buffer.data() + static_cast<int64_t>(i) * kBlock, at,
                        kBlock, i});
    }
    for (int i = 0; i < 5; ++i) io.Cancel(path, random() % kBatch);
    Drain(io, &ended, &cancelled);
    // Once everything has been used: threads, the ring's workers.
    if (batch == 20) before = Footprint();
  }
  EXPECT_EQ(ended, kBatches * kBatch);
  EXPECT_GT(cancelled, 0);
  ExpectNoGrowth(before);
}

TEST_P(Lifecycle, AThousandStartsStopsAndCancelsDoNotHang) {
  AlignedBuffer buffer(kFileBytes);
  TemporaryFile file(kFileBytes);
  std::mt19937 random(32);
  Footprint before;
  for (int run = 0; run < 1000; ++run) {
    absl::StatusOr<std::unique_ptr<IoEngine>> engine =
        std::string(GetParam()) == "threads" ? MakeEngine(EngineKind::kThreads)
                                             : MakeRingOfKind(GetParam());
    if (!engine.ok()) GTEST_SKIP() << engine.status();
    IoPaths io(*std::move(engine), SystemClock());
    const int path = *io.AddPath("file", file.fd(), {});
    std::atomic<bool> done = false;
    // Wakes at any moment, until after the last completion.
    std::thread waker([&] {
      while (!done.load()) {
        io.Wake();
        std::this_thread::yield();
      }
    });
    const uint64_t count = 1 + random() % 16;
    for (uint64_t i = 0; i < count; ++i) {
      const int64_t at = static_cast<int64_t>(random() % 64) * kBlock;
      io.Enqueue(path, {i % 2 == 0 ? IoDirection::kRead : IoDirection::kWrite,
                        IoClass::kDemand,
                        buffer.data() + static_cast<int64_t>(i) * kBlock, at,
                        kBlock, i});
    }
    int ended = 0;
    int cancelled = 0;
    if (random() % 2 == 0) io.Wait(SystemClock().Now());
    for (uint64_t i = 0; i < count; i += 1 + random() % 3) {
      io.Cancel(path, i);
    }
    Drain(io, &ended, &cancelled);
    done.store(true);
    waker.join();
    ASSERT_EQ(ended, static_cast<int>(count)) << "run " << run;
    if (run == 10) before = Footprint();
  }
  ExpectNoGrowth(before);
}

}  // namespace
}  // namespace terrace
