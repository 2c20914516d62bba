#include "tiers/disk/state_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/fuse/fuse_mount.h"

namespace terrace {
namespace {

constexpr int64_t kBytes = 8 << 20;

int64_t CachedBytes(int fd) {
  void* const mapping = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) return -1;
  std::vector<unsigned char> pages(kBytes / 4096);
  const int code = mincore(mapping, kBytes, pages.data());
  munmap(mapping, kBytes);
  if (code != 0) return -1;
  return 4096 * std::count_if(pages.begin(), pages.end(),
                              [](unsigned char page) { return page & 1; });
}

// A file system without preallocation, and a file without direct I/O.
TEST(StateFile, WhatIsFilledByHandDoesNotStayInThePageCache) {
  FuseMount mount;
  if (!mount.ok()) GTEST_SKIP() << mount.reason();
  mount.Arm({.call = FuseCall::kGrow,
             .kind = FuseFault::Kind::kError,
             .value = EOPNOTSUPP});
  const std::string name = mount.path() + "/state";
  // This server keeps what is not opened for direct I/O out of the page cache.
  const int fd =
      open(name.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(fcntl(fd, F_SETFL, O_RDWR), 0);
  std::atomic<int64_t> progress = 0;
  const absl::Status filled = Preallocate(fd, name, 0, kBytes, &progress);
  EXPECT_TRUE(filled.ok()) << filled;
  EXPECT_EQ(progress, kBytes) << "this file system preallocates";
  struct stat status = {};
  EXPECT_EQ(fstat(fd, &status), 0);
  EXPECT_EQ(status.st_size, kBytes);
  EXPECT_GE(CachedBytes(fd), 0);
  EXPECT_LE(CachedBytes(fd), kBytes / 16);
  close(fd);
}

}  // namespace
}  // namespace terrace
