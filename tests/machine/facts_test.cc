#include "machine/facts.h"

#include <sys/resource.h>

#include "gtest/gtest.h"
#include "tests/machine/pseudo_root.h"

namespace terrace {
namespace {

TEST(MemoryFactsTest, SettingsAndPoolsAreRead) {
  PseudoRoot root;
  root.Write("/proc/meminfo",
             "MemTotal:       2000 kB\nMemAvailable:   1000 kB\n"
             "SwapTotal:          30 kB\n");
  const std::string huge = "/sys/kernel/mm/transparent_hugepage/";
  root.Write(huge + "enabled", "always madvise [never]\n");
  root.Write(huge + "defrag", "always defer defer+madvise [madvise] never\n");
  root.Write(huge + "shmem_enabled", "always [advise] never\n");
  root.Write(huge + "hpage_pmd_size", "2097152\n");
  const std::string pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  root.Write(pool + "nr_hugepages", "9\n");
  root.Write(pool + "free_hugepages", "7\n");
  root.Write(pool + "resv_hugepages", "2\n");
  root.Write("/proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
  MemoryReport report;
  ReadMemory(root.files(), &report);
  EXPECT_EQ(report.total_bytes, 2000 << 10);
  EXPECT_EQ(report.available_bytes, 1000 << 10);
  EXPECT_EQ(report.swap_bytes, 30 << 10);
  EXPECT_EQ(report.transparent, "never");
  EXPECT_EQ(report.transparent_defrag, "madvise");
  EXPECT_EQ(report.transparent_shared, "advise");
  EXPECT_EQ(report.huge_page_bytes, 2 << 20);
  ASSERT_EQ(report.pools.size(), 1u);
  EXPECT_EQ(report.pools[0].page_bytes, 2 << 20);
  EXPECT_EQ(report.pools[0].total, 9);
  EXPECT_EQ(report.pools[0].free, 7);
  EXPECT_EQ(report.pools[0].reserved, 2);
  EXPECT_TRUE(report.locked_limit_exempt);
}

TEST(MemoryFactsTest, WhatIsNotThereIsUnknown) {
  PseudoRoot root;
  MemoryReport report;
  ReadMemory(root.files(), &report);
  EXPECT_EQ(report.total_bytes, -1);
  EXPECT_EQ(report.available_bytes, -1);
  EXPECT_EQ(report.transparent, "");
  EXPECT_EQ(report.huge_page_bytes, -1);
  EXPECT_TRUE(report.pools.empty());
  EXPECT_FALSE(report.locked_limit_exempt);
}

class ContainerTest : public testing::Test {
 protected:
  ContainerReport Read() {
    ContainerReport report;
    ReadContainer(root_.files(), &report);
    return report;
  }
  PseudoRoot root_;
};

TEST_F(ContainerTest, WithoutGroupsNothingLimits) {
  const ContainerReport report = Read();
  EXPECT_EQ(report.runtime, "");
  EXPECT_EQ(report.group_version, 0);
  EXPECT_EQ(report.memory_limit_bytes, kNoLimit);
  EXPECT_EQ(report.cpu_limit, 0);
  EXPECT_EQ(report.task_limit, kNoLimit);
  EXPECT_FALSE(report.seccomp);
}

TEST_F(ContainerTest, Version2TakesTheTightestOnTheWayUp) {
  root_.Write("/proc/self/cgroup", "0::/slice/docker-1.scope\n");
  root_.Write("/proc/self/status", "Seccomp:\t2\nSeccomp_filters:\t1\n");
  const std::string slice = "/sys/fs/cgroup/slice";
  root_.Write(slice + "/memory.max", "5000\n");
  root_.Write(slice + "/memory.current", "3000\n");
  root_.Write(slice + "/cpu.max", "150000 100000\n");
  root_.Write(slice + "/docker-1.scope/memory.max", "9000\n");
  root_.Write(slice + "/docker-1.scope/memory.current", "100\n");
  root_.Write(slice + "/docker-1.scope/cpu.max", "max 100000\n");
  root_.Write(slice + "/docker-1.scope/pids.max", "77\n");
  const ContainerReport report = Read();
  EXPECT_EQ(report.group_version, 2);
  EXPECT_EQ(report.runtime, "docker");
  EXPECT_EQ(report.memory_limit_bytes, 5000);
  EXPECT_EQ(report.memory_used_bytes, 3000);
  EXPECT_EQ(report.cpu_limit, 1.5);
  EXPECT_EQ(report.task_limit, 77);
  EXPECT_TRUE(report.seccomp);
}

TEST_F(ContainerTest, Version1HasATreeForEachController) {
  root_.Write("/proc/self/cgroup",
              "5:cpu,cpuacct:/kubepods/p\n4:memory:/kubepods/p\n"
              "3:pids:/\n0::/\n");
  root_.Write("/sys/fs/cgroup/cpu/kubepods/p/cpu.cfs_quota_us", "-1\n");
  root_.Write("/sys/fs/cgroup/cpu/kubepods/p/cpu.cfs_period_us", "100000\n");
  root_.Write("/sys/fs/cgroup/cpu/kubepods/cpu.cfs_quota_us", "400000\n");
  root_.Write("/sys/fs/cgroup/cpu/kubepods/cpu.cfs_period_us", "100000\n");
  root_.Write("/sys/fs/cgroup/memory/kubepods/p/memory.limit_in_bytes",
              "8192\n");
  root_.Write("/sys/fs/cgroup/memory/kubepods/p/memory.usage_in_bytes",
              "4096\n");
  const ContainerReport report = Read();
  EXPECT_EQ(report.group_version, 1);
  EXPECT_EQ(report.runtime, "kubernetes");
  EXPECT_EQ(report.memory_limit_bytes, 8192);
  EXPECT_EQ(report.memory_used_bytes, 4096);
  EXPECT_EQ(report.cpu_limit, 4);
}

TEST_F(ContainerTest, Version1sLargestNumberIsNoLimit) {
  root_.Write("/proc/self/cgroup", "4:memory:/a\n");
  root_.Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
              "9223372036854771712\n");
  const ContainerReport report = Read();
  EXPECT_EQ(report.group_version, 1);
  EXPECT_EQ(report.memory_limit_bytes, kNoLimit);
}

TEST_F(ContainerTest, LimitsOfTheProcessAreThoseOfGetrlimit) {
  const ContainerReport report = Read();
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_EQ(static_cast<rlim_t>(report.open_files_limit), files.rlim_cur);
}

class GpuTest : public testing::Test {
 protected:
  GpuReport Read(const GpuLibraries& libraries) {
    GpuReport report;
    ReadGpu(root_.files(), libraries, &report);
    return report;
  }
  void AddDriver() {
    root_.Write("/proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "
                "580.65.06  Release Build\nGCC version:  gcc 12.2.0\n");
    root_.Write("/proc/driver/nvidia/gpus/0000:01:00.0/information",
                "Model: \t\t NVIDIA H100\nIRQ:   99\nGPU UUID: \t GPU-1\n");
    root_.Write("/proc/driver/nvidia/gpus/0000:02:00.0/information",
                "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-2\n");
  }
  PseudoRoot root_;
};

TEST_F(GpuTest, NoDriverIsNoError) {
  const GpuReport report = Read({FAKE_DRIVER, FAKE_DRIVER});
  EXPECT_EQ(report.driver_version, "");
  EXPECT_FALSE(report.has_cuda);
  EXPECT_TRUE(report.devices.empty());
  EXPECT_EQ(report.display_controllers, 0);
}

TEST_F(GpuTest, TheDriverAndItsLibrariesTellOfEachDevice) {
  AddDriver();
  const GpuReport report = Read({FAKE_DRIVER, FAKE_DRIVER});
  EXPECT_EQ(report.driver_version, "580.65.06");
  EXPECT_TRUE(report.has_cuda);
  EXPECT_EQ(report.cuda_version, 13000);
  ASSERT_EQ(report.devices.size(), 2u);
  EXPECT_EQ(report.devices[0].name, "NVIDIA H100");
  EXPECT_EQ(report.devices[0].uuid, "GPU-1");
  EXPECT_EQ(report.devices[0].bus, "0000:01:00.0");
  EXPECT_EQ(report.devices[0].memory_bytes, int64_t{80} << 30);
  EXPECT_EQ(report.devices[0].compute_major, 9);
  EXPECT_EQ(report.devices[0].compute_minor, 0);
  EXPECT_EQ(report.devices[1].memory_bytes, -1);
}

TEST_F(GpuTest, MissingLibrariesLeaveTheDriversOwnWords) {
  AddDriver();
  const GpuReport report = Read({"libno-such-cuda.so", "libno-such-nvml.so"});
  EXPECT_FALSE(report.has_cuda);
  EXPECT_NE(report.cuda_error.find("libno-such-cuda.so"), std::string::npos);
  ASSERT_EQ(report.devices.size(), 2u);
  EXPECT_EQ(report.devices[0].name, "NVIDIA H100");
  EXPECT_EQ(report.devices[0].memory_bytes, -1);
}

TEST_F(GpuTest, ControllersWithoutADriverAreCounted) {
  const std::string pci = "/sys/bus/pci/devices/";
  root_.Write(pci + "0000:01:00.0/vendor", "0x10de\n");
  root_.Write(pci + "0000:01:00.0/class", "0x030200\n");
  root_.Write(pci + "0000:01:00.1/vendor", "0x10de\n");
  root_.Write(pci + "0000:01:00.1/class", "0x040300\n");  // its sound
  root_.Write(pci + "0000:02:00.0/vendor", "0x8086\n");
  root_.Write(pci + "0000:02:00.0/class", "0x030000\n");
  EXPECT_EQ(Read({}).display_controllers, 1);
}

}  // namespace
}  // namespace terrace
