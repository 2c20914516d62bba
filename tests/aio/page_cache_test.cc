// Of a file that is not open for direct I/O nothing stays in the page cache.
#include "base/page_cache.h"

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "aio/io_paths.h"
#include "gtest/gtest.h"
#include "tests/aio/test_files.h"
#include "tests/support/loop_device.h"

namespace terrace {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kFileBytes = 32 * kMiB;
constexpr int64_t kTransferBytes = 2 * kMiB;

// Of the file's pages, as the kernel says.
int64_t CachedBytes(int fd) {
  void* const mapping = mmap(nullptr, kFileBytes, PROT_READ, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) return -1;
  std::vector<unsigned char> pages(kFileBytes / 4096);
  const int code = mincore(mapping, kFileBytes, pages.data());
  munmap(mapping, kFileBytes);
  if (code != 0) return -1;
  return 4096 * std::count_if(pages.begin(), pages.end(),
                              [](unsigned char page) { return page & 1; });
}

class PageCacheTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    struct statfs system;
    ASSERT_EQ(fstatfs(file_.fd(), &system), 0);
    if (system.f_type == TMPFS_MAGIC) {
      GTEST_SKIP() << file_.name() << ": its pages are the file, on tmpfs";
    }
    auto engine = std::string(GetParam()) == "threads"
                      ? MakeEngine(EngineKind::kThreads)
                      : MakeRingOfKind(GetParam());
    if (!engine.ok()) GTEST_SKIP() << engine.status();
    io_ = std::make_unique<IoPaths>(*std::move(engine), SystemClock());
    path_ = *io_->AddPath(file_.name(), file_.fd(), {});
    io_->RegisterArena(
        {buffer_.data(), static_cast<size_t>(buffer_.size_bytes())});
    buffer_.FillRandom(3);
  }

  // The whole file, all transfers at once, from or into the buffer.
  void MoveAll(IoDirection direction) {
    for (int64_t at = 0; at < kFileBytes; at += kTransferBytes) {
      io_->Enqueue(path_, {direction, IoClass::kDemand, buffer_.data() + at, at,
                           kTransferBytes, static_cast<uint64_t>(at)});
    }
    std::vector<Completion> ended;
    io_->Poll(&ended);
    while (io_->pending() > 0) {
      io_->Wait(io_->NextEvent());
      io_->Poll(&ended);
    }
    for (const Completion& completion : ended) {
      EXPECT_TRUE(completion.status.ok()) << completion.status;
    }
  }

  TemporaryFile file_{kFileBytes, /*direct=*/false};
  AlignedBuffer buffer_{kFileBytes};
  std::unique_ptr<IoPaths> io_;
  int path_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Engines, PageCacheTest,
                         testing::Values("io_uring", "io_uring_bare",
                                         "threads"),
                         [](const auto& kind) {
                           return std::string(kind.param);
                         });

TEST_P(PageCacheTest, WhatWasWrittenAndReadBackDoesNotStay) {
  const std::vector<std::byte> content = buffer_.Copy(0, kFileBytes);
  MoveAll(IoDirection::kWrite);
  EXPECT_LE(CachedBytes(file_.fd()), kFileBytes / 16) << "after writing";
  buffer_.Fill(0);
  MoveAll(IoDirection::kRead);
  EXPECT_LE(CachedBytes(file_.fd()), kFileBytes / 16) << "after reading";
  EXPECT_EQ(buffer_.Copy(0, kFileBytes), content);
}

// And the pages say so: a test that sees none could not fail.
TEST_P(PageCacheTest, OthersTransfersStay) {
  ASSERT_EQ(pwrite(file_.fd(), buffer_.data(), kFileBytes, 0), kFileBytes);
  EXPECT_EQ(CachedBytes(file_.fd()), kFileBytes);
}

// Its node's file system says nothing of its pages.
TEST(LeavesPages, ADeviceThatIsNotOpenForDirectTransfersDoes) {
  const LoopDevice device(kMiB);
  if (!device.ok()) GTEST_SKIP() << device.reason();
  EXPECT_TRUE(LeavesPages(device.fd()));
  const int direct = open(device.path().c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  ASSERT_GE(direct, 0);
  EXPECT_FALSE(LeavesPages(direct));
  close(direct);
}

}  // namespace
}  // namespace terrace
