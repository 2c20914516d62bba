#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "gtest/gtest.h"
#include "terrace/machine.h"
#include "tests/support/temporary_directory.h"
#include "tiers/memory/process_memory.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

TEST(MachineTest, FreeDiskBytesAreTheFileSystems) {
  const std::string directory = testing::TempDir();
  const absl::StatusOr<int64_t> bytes = FreeDiskBytes(directory);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const fs::space_info space = fs::space(directory);
  // Others write meanwhile.
  EXPECT_NEAR(static_cast<double>(*bytes), static_cast<double>(space.available),
              1e9);
}

TEST(MachineTest, FreeDiskBytesOfNoDirectory) {
  const std::string missing = testing::TempDir() + "/no/such/place";
  const absl::Status status = FreeDiskBytes(missing).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_NE(status.ToString().find(missing), std::string::npos);
  EXPECT_TRUE(absl::IsInvalidArgument(FreeDiskBytes("/proc/version").status()));
}

TEST(MachineTest, AvailableMemoryIsPartOfThePhysical) {
  const int64_t bytes = AvailableMemoryBytes();
  EXPECT_GT(bytes, 0);
  EXPECT_LE(bytes, sysconf(_SC_PHYS_PAGES) * int64_t{sysconf(_SC_PAGESIZE)});
}

TEST(MachineTest, TheInstructionSetIsOneOfThisProcessor) {
  const std::string name = InstructionSetName();
  // Each set is a flag of /proc/cpuinfo, but for the one that needs none.
  const std::map<std::string, std::string> flags = {
      {"AVX-512", "avx512f"}, {"AVX2", "avx2"}, {"NEON", "asimd"}};
  if (name == "scalar") return;
  ASSERT_EQ(flags.count(name), 1u) << name;
  std::stringstream text;
  text << std::ifstream("/proc/cpuinfo").rdbuf();
  EXPECT_NE(text.str().find(" " + flags.at(name)), std::string::npos) << name;
}

class PseudoFiles : public testing::Test {
 protected:
  void SetUp() override {
    Write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:  1000 kB\n");
  }

  void Write(const std::string& name, const std::string& text) {
    root_.Write(name, text);
  }
  int64_t Available() {
    return AvailableMemoryBytesUnder(root_.path() + "/proc",
                                     root_.path() + "/cgroup");
  }

  TemporaryDirectory root_;
};

TEST_F(PseudoFiles, WithoutGroupsItIsWhatTheKernelSays) {
  EXPECT_EQ(Available(), 1000 * 1024);
}

TEST_F(PseudoFiles, AnUnlimitedGroupChangesNothing) {
  Write("proc/self/cgroup", "0::/job\n");
  Write("cgroup/job/memory.max", "max\n");
  Write("cgroup/job/memory.current", "5000\n");
  EXPECT_EQ(Available(), 1000 * 1024);
}

TEST_F(PseudoFiles, TheTightestGroupOnTheWayUpDecides) {
  Write("proc/self/cgroup", "0::/slice/job\n");
  Write("cgroup/slice/job/memory.max", "700000\n");
  Write("cgroup/slice/job/memory.current", "100000\n");
  EXPECT_EQ(Available(), 600000);
  Write("cgroup/slice/memory.max", "500000\n");
  Write("cgroup/slice/memory.current", "450000\n");
  Write("cgroup/slice/memory.stat", "file 77\ninactive_file 30000\n");
  EXPECT_EQ(Available(), 80000);
}

TEST_F(PseudoFiles, AContainersRootGroupCounts) {
  Write("proc/self/cgroup", "0::/\n");
  Write("cgroup/memory.max", "4096\n");
  Write("cgroup/memory.current", "9000\n");
  EXPECT_EQ(Available(), 0);
}

TEST_F(PseudoFiles, TheFirstVersionsGroupsCount) {
  Write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:hugetlb,memory:/b\n");
  Write("cgroup/memory/b/memory.limit_in_bytes", "300000\n");
  Write("cgroup/memory/b/memory.usage_in_bytes", "100000\n");
  EXPECT_EQ(Available(), 200000);
}

TEST_F(PseudoFiles, AKernelThatSaysNothingLimitsNothing) {
  fs::remove_all(root_.path() + "/proc");
  EXPECT_EQ(Available(), INT64_MAX);
}

}  // namespace
}  // namespace terrace
