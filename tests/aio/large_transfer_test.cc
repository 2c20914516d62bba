// Transfers beyond what one system call moves: 2 GiB - 4 KiB. The system ends
// such a call short, and the queue goes on from there.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "aio/io_paths.h"
#include "base/check.h"
#include "gtest/gtest.h"
#include "tests/aio/io_queue_fixture.h"
#include "tests/aio/test_files.h"

namespace terrace {
namespace {

constexpr int64_t kMostOfACall = 0x7ffff000;
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kLarge = (int64_t{2} << 30) + 2 * kMiB;

// kLarge bytes of address space on 10 MiB of memory: the first 2 MiB, those at
// both sides of 1 GiB and the last 2 MiB are their own, all between them the
// same 2 MiB again and again.
// (The process' resident size counts a page as often as it is mapped.)
class FoldedBuffer {
 public:
  FoldedBuffer() {
    void* const reserved =
        mmap(nullptr, kLarge, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TERRACE_CHECK(reserved != MAP_FAILED);
    data_ = static_cast<std::byte*>(reserved);
    const int memory = memfd_create("folded", MFD_CLOEXEC);
    TERRACE_CHECK(memory >= 0 && ftruncate(memory, 5 * kFold) == 0);
    for (int64_t at = 0; at < kLarge; at += kFold) {
      const int64_t fold = kFold * NumberOf(at);
      TERRACE_CHECK(mmap(data_ + at, kFold, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_FIXED, memory, fold) == data_ + at);
    }
    close(memory);
  }
  ~FoldedBuffer() { munmap(data_, kLarge); }
  FoldedBuffer(const FoldedBuffer&) = delete;
  FoldedBuffer& operator=(const FoldedBuffer&) = delete;

  std::byte* data() const { return data_; }

 private:
  static constexpr int64_t kFold = 2 * kMiB;
  static constexpr int64_t kMiddle = int64_t{1} << 30;
  static_assert(kLarge % kFold == 0);

  // Of the fold's memory.
  static int NumberOf(int64_t at) {
    if (at == 0) return 1;
    if (at == kMiddle - kFold) return 2;
    if (at == kMiddle) return 3;
    return at + kFold == kLarge ? 4 : 0;
  }

  std::byte* data_ = nullptr;
};

IoQueueOptions OnePiece() {
  IoQueueOptions options;
  options.in_flight_bytes = 2 * kLarge;
  options.piece_bytes = 2 * kLarge;
  options.adapts = false;
  return options;
}

class LargeTransfer : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Engines, LargeTransfer,
                         testing::Values("io_uring", "io_uring_bare",
                                         "threads"),
                         [](const auto& kind) {
                           return std::string(kind.param);
                         });

TEST_P(LargeTransfer, OneCallBeyondTheSystemsLimitIsContinued) {
#if defined(__SANITIZE_THREAD__)
  if (std::string(GetParam()) == "threads") {
    GTEST_SKIP() << "the sanitiser shadows every byte that pread moves";
  }
#endif
  EngineUnderTest made =
      MakeEngineUnderTest(GetParam(), 1, kLarge, SystemClock());
  if (made.engine == nullptr) GTEST_SKIP() << made.reason_to_skip;
  const int fd = made.descriptors[0];
  if ((fcntl(fd, F_GETFL) & O_DIRECT) == 0) {
    GTEST_SKIP() << "no direct I/O here: a hole would fill the page cache";
  }
  // A hole but for a block at each end and one on either side of the limit.
  const int64_t marks[] = {0, kMostOfACall - kBlock, kMostOfACall,
                           kLarge - kBlock};
  AlignedBuffer mark(4 * kBlock);
  mark.FillRandom(21);
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(pwrite(fd, mark.data() + i * kBlock, kBlock, marks[i]), kBlock);
  }
  FoldedBuffer buffer;
  IoPaths io(std::move(made.engine), SystemClock());
  const int path = *io.AddPath("large", fd, OnePiece());
  io.Enqueue(path, {IoDirection::kRead, IoClass::kDemand, buffer.data(), 0,
                    kLarge, 1});
  std::vector<Completion> ended;
  const absl::Time limit = SystemClock().Now() + absl::Seconds(60);
  while (io.pending() > 0 && SystemClock().Now() < limit) {
    io.Poll(&ended);
    if (io.pending() > 0) {
      io.Wait(std::min(io.NextEvent(), limit));
    }
  }
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(ended[0].status.ok()) << ended[0].status;
  EXPECT_EQ(io.stats(path).bytes_read, kLarge);
  EXPECT_GE(io.stats(path).continuations, 1);
  EXPECT_EQ(io.stats(path).requests_read, 1 + io.stats(path).continuations);
  // The block before the limit lies in the fold, and what was read after it
  // is not of the fold: it is still there.
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(
        std::memcmp(buffer.data() + marks[i], mark.data() + i * kBlock, kBlock),
        0)
        << marks[i];
  }
}

// The kernel takes no more than 1 GiB as one registered buffer.
TEST(UringBuffers, AnArenaOfSeveralSlotsIsRegisteredAndUsedAcrossThem) {
  constexpr int64_t kSlot = int64_t{1} << 30;
  constexpr int64_t kSize = 4 * kMiB;
  EngineUnderTest made =
      MakeEngineUnderTest("io_uring", 1, kSize, SystemClock());
  if (made.engine == nullptr) GTEST_SKIP() << made.reason_to_skip;
  AlignedBuffer content(kSize);
  content.FillRandom(22);
  ASSERT_EQ(pwrite(made.descriptors[0], content.data(), kSize, 0), kSize);
  FoldedBuffer arena;
  made.engine->RegisterArena({arena.data(), static_cast<size_t>(kLarge)});
  const EngineInfo info = made.engine->info();
  if (geteuid() == 0) {
    EXPECT_EQ(info.registered_bytes, kLarge) << info.reason;
    EXPECT_TRUE(info.buffers_registered);
  } else if (info.registered_bytes < kLarge) {
    EXPECT_NE(info.reason.find("not registered"), std::string::npos)
        << info.reason;
    EXPECT_EQ(info.registered_bytes % kSlot, 0);
  }
  IoPaths io(std::move(made.engine), SystemClock());
  const int path = *io.AddPath("file", made.descriptors[0], {});
  // In the first slot, over its end, in the last.
  const int64_t places[] = {0, kSlot - 2 * kMiB, 2 * kSlot - 2 * kMiB};
  for (const int64_t place : places) {
    std::memset(arena.data() + place, 0, kSize);
    io.Enqueue(path, {IoDirection::kRead, IoClass::kDemand,
                      arena.data() + place, 0, kSize, 1});
    std::vector<Completion> ended;
    while (io.pending() > 0) {
      io.Poll(&ended);
      if (io.pending() > 0) io.Wait(absl::InfiniteFuture());
    }
    ASSERT_EQ(ended.size(), 1u);
    EXPECT_TRUE(ended[0].status.ok()) << ended[0].status;
    EXPECT_EQ(std::memcmp(arena.data() + place, content.data(), kSize), 0)
        << place;
  }
}

// The same of a write, without a disk to fill.
TEST_F(IoQueueTest, AWriteThatEndsAtTheSystemsLimitGoesOnFromThere) {
  const int path = *io_->AddPath("large", 1, OnePiece());
  io_->Enqueue(path, {IoDirection::kWrite, IoClass::kWriteBack, buffer_.data(),
                      kBlock, kLarge, 1});
  Poll();
  ASSERT_EQ(engine_->in_flight().size(), 1u);
  EXPECT_EQ(engine_->in_flight()[0].size_bytes, kLarge);
  engine_->Complete(0, kMostOfACall);
  Poll();
  ASSERT_EQ(engine_->in_flight().size(), 1u);
  const IoRequest& rest = engine_->in_flight()[0];
  EXPECT_EQ(rest.size_bytes, kLarge - kMostOfACall);
  EXPECT_EQ(rest.offset, kBlock + kMostOfACall);
  EXPECT_EQ(rest.data, buffer_.data() + kMostOfACall);
  engine_->CompleteAll();
  const auto ended = Poll();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(ended[0].status.ok()) << ended[0].status;
  EXPECT_EQ(io_->stats(path).bytes_written, kLarge);
}

}  // namespace
}  // namespace terrace
