// What is written before is written again without a worker thread of the
// ring: the queue's transfers never leave the fast path in steady state.
#include "bench/io/ring_workers.h"

#include <sys/vfs.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "aio/io_paths.h"
#include "gtest/gtest.h"
#include "tests/aio/test_files.h"

namespace terrace {
namespace {

constexpr int64_t kSize = 32 << 20;
constexpr int64_t kTransfer = 8 << 20;
constexpr int kExt4 = 0xef53;

void Move(int fd, IoDirection direction, std::byte* data) {
  absl::StatusOr<std::unique_ptr<IoEngine>> engine =
      MakeEngine(EngineKind::kUring);
  ASSERT_TRUE(engine.ok()) << engine.status();
  IoPaths io(*std::move(engine), SystemClock());
  const int path = *io.AddPath("file", fd, {});
  for (int64_t at = 0; at < kSize; at += kTransfer) {
    io.Enqueue(path, {direction, IoClass::kDemand, data, at, kTransfer,
                      static_cast<uint64_t>(at)});
  }
  std::vector<Completion> ended;
  while (io.pending() > 0) {
    io.Poll(&ended);
    if (io.pending() > 0) io.Wait(absl::InfiniteFuture());
  }
  for (const Completion& completion : ended) {
    EXPECT_TRUE(completion.status.ok()) << completion.status;
  }
}

// Workers that a write and a read of all of it were handed to. On a thread of
// its own: the workers that its rings have made end with it.
int WorkersOfAMove(int fd, std::byte* data) {
  int workers = 0;
  std::thread mover([&] {
    Move(fd, IoDirection::kWrite, data);
    Move(fd, IoDirection::kRead, data);
    workers = CountRingWorkers();
  });
  mover.join();
  const absl::Time limit = SystemClock().Now() + absl::Seconds(30);
  while (CountRingWorkers() > 0 && SystemClock().Now() < limit) {
    std::this_thread::yield();
  }
  return workers;
}

TEST(RingWorkers, AreNotNeededForWhatWasWrittenBefore) {
  if (!MakeEngine(EngineKind::kUring).ok()) GTEST_SKIP() << "no io_uring";
  EngineUnderTest made =
      MakeEngineUnderTest("io_uring", 1, kSize, SystemClock());
  const int fd = made.descriptors[0];
  if ((fcntl(fd, F_GETFL) & O_DIRECT) == 0) {
    GTEST_SKIP() << "no direct I/O here: the page cache needs workers";
  }
  AlignedBuffer buffer(kTransfer);
  buffer.FillRandom(23);
  for (int64_t at = 0; at < kSize; at += kTransfer) {
    ASSERT_EQ(pwrite(fd, buffer.data(), kTransfer, at), kTransfer);
  }
  ASSERT_EQ(CountRingWorkers(), 0);
  // A disk whose queue others have filled has none of it free at once: one of
  // several times is enough.
  int workers = WorkersOfAMove(fd, buffer.data());
  for (int tries = 1; tries < 10 && workers > 0; ++tries) {
    workers = WorkersOfAMove(fd, buffer.data());
  }
  EXPECT_EQ(workers, 0);

  struct statfs system = {};
  ASSERT_EQ(fstatfs(fd, &system), 0);
  if (system.f_type != kExt4) return;
  // And the count counts: what makes a file longer does need one.
  ASSERT_EQ(ftruncate(fd, 0), 0);
  Move(fd, IoDirection::kWrite, buffer.data());
  EXPECT_GT(CountRingWorkers(), 0);
}

}  // namespace
}  // namespace terrace
