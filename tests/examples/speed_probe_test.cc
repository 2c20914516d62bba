// speed_probe.h: what does not depend on how fast the machine is.
#include "examples/train_gpt/speed_probe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/temporary_directory.h"

namespace train_gpt {
namespace {

using ::terrace::TemporaryDirectory;

TEST(SpeedProbeTest, EachDirectionIsPacedByItself) {
  EXPECT_EQ(PacedBytesPerSecond(100, 200, {}, 2), 300);
  EXPECT_EQ(PacedBytesPerSecond(100, 200, {10, 0}, 2), 20 + 200);
  EXPECT_EQ(PacedBytesPerSecond(100, 200, {0, 30}, 2), 100 + 60);
  EXPECT_EQ(PacedBytesPerSecond(100, 200, {10, 30}, 1), 10 + 30);
  EXPECT_EQ(PacedBytesPerSecond(100, 200, {60, 300}, 2), 100 + 200);
}

// Where a file system knows no nameless or no direct files, the next best.
TEST(SpeedProbeTest, AProbeFileLeavesNoNameWhateverTheFileSystemKnows) {
  TemporaryDirectory directory;
  for (const int unknown : {0, O_TMPFILE, O_DIRECT, O_TMPFILE | O_DIRECT}) {
    SCOPED_TRACE(unknown);
    const absl::StatusOr<int> file = OpenProbeFile(directory.path(), unknown);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE(directory.empty());
    struct stat info;
    ASSERT_EQ(fstat(*file, &info), 0);
    EXPECT_EQ(info.st_nlink, 0u);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    const int flags = fcntl(*file, F_GETFL);
    EXPECT_EQ(flags & O_ACCMODE, O_RDWR);
    EXPECT_EQ(flags & O_DIRECT & unknown, 0);
    alignas(4096) std::array<char, 4096> block{};
    EXPECT_EQ(pwrite(*file, block.data(), block.size(), 0), 4096);
    EXPECT_EQ(pread(*file, block.data(), block.size(), 0), 4096);
    close(*file);
  }
}

TEST(SpeedProbeTest, WhereNoFileCanBeMadeItSaysWhere) {
  TemporaryDirectory directory;
  const std::string none = directory.path() + "/none";
  const absl::StatusOr<int> file = OpenProbeFile(none);
  EXPECT_TRUE(absl::IsUnavailable(file.status())) << file.status();
  EXPECT_NE(file.status().ToString().find(none), std::string::npos);
  EXPECT_FALSE(MeasureDiskBytesPerSecond({none}, {}).ok());
}

}  // namespace
}  // namespace train_gpt
