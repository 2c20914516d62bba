// The page cache of a machine is for what runs there: a checkpoint that was
// written or read does not stay in it.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/job.h"

namespace terrace {
namespace {

// Bytes of the file in the page cache.
int64_t CachedBytes(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY);
  const auto size = static_cast<size_t>(lseek(fd, 0, SEEK_END));
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* map = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  EXPECT_NE(map, MAP_FAILED) << path;
  std::vector<unsigned char> resident((size + page - 1) / page);
  EXPECT_EQ(mincore(map, size, resident.data()), 0) << path;
  munmap(map, size);
  close(fd);
  return static_cast<int64_t>(page) *
         std::count_if(resident.begin(), resident.end(),
                       [](unsigned char flags) { return (flags & 1) != 0; });
}

// Whether a file system forgets what it is told to; a tmpfs cannot.
bool Forgets(const TemporaryDirectory& directory) {
  const std::string path = directory.Write("large", std::string(8 << 20, 'x'));
  const int fd = open(path.c_str(), O_RDONLY);
  EXPECT_EQ(fsync(fd), 0);
  const bool was_there = CachedBytes(path) > 4 << 20;
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
  return was_there && CachedBytes(path) < 1 << 20;
}

class PageCache : public testing::Test {
 protected:
  void SetUp() override {
    TemporaryDirectory trial;
    if (!Forgets(trial)) GTEST_SKIP() << "files here stay in the page cache";
    ASSERT_TRUE(job_.ok());
    job_.Step(1);
    ASSERT_TRUE(job_.Save(directory_.path(), values_).ok());
  }

  // Of all files; at most some pages of headers, which are read again.
  void ExpectForgotten() {
    int64_t cached = 0;
    for (const std::string& name : directory_.Entries()) {
      cached += CachedBytes(absl::StrCat(directory_.path(), "/", name));
    }
    EXPECT_LE(cached, 1 << 20);
  }

  TemporaryDirectory directory_;
  // A parameter of 10 MB, two moments of as much, and 8 MB of values.
  Job job_{Model::Of({{"w", DType::kFloat32, 2'500'000}}, 3),
           {.budget_bytes = 4 << 20, .chunk_bytes = 1 << 20}};
  const CheckpointValues values_ = {
      {"bytes", CheckpointBytes{std::string(8'000'000, 'x')}}};
};

TEST_F(PageCache, DoesNotKeepWhatASaveWrote) { ExpectForgotten(); }

TEST_F(PageCache, DoesNotKeepWhatALoadRead) {
  ASSERT_TRUE(job_.Load(directory_.path()).ok());
  ExpectForgotten();
}

TEST_F(PageCache, DoesNotKeepWhatVerifyRead) {
  auto checkpoint = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ExpectForgotten();
  ASSERT_TRUE((*checkpoint)->Verify().ok());
  ExpectForgotten();
}

}  // namespace
}  // namespace terrace
