#include "tiers/memory/topology.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

std::set<int> CpusBySystemCall() {
  cpu_set_t set;
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  std::set<int> cpus;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) cpus.insert(i);
  }
  return cpus;
}

TEST(TopologyTest, NamesTheCpusThatThisProcessMayUse) {
  const absl::StatusOr<Topology> topology = ReadTopology();
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(std::set<int>(topology->cpus.begin(), topology->cpus.end()),
            CpusBySystemCall());
  EXPECT_EQ(topology->cpus.size(), CpusBySystemCall().size()) << "no repeats";
  EXPECT_GE(topology->cores, 1);
  EXPECT_LE(topology->cores, static_cast<int>(topology->cpus.size()));
}

TEST(TopologyTest, FollowsTheProcessesAffinity) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  const int only = *CpusBySystemCall().rbegin();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(only, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const absl::StatusOr<Topology> topology = ReadTopology();
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->cpus, std::vector<int>{only});
  EXPECT_EQ(topology->cores, 1);
}

// "Node 0 MemTotal:  7432404 kB" of sysfs, in bytes; -1: no such file.
int64_t SysfsMemoryBytes(int node) {
  std::ifstream file("/sys/devices/system/node/node" + std::to_string(node) +
                     "/meminfo");
  std::string word;
  while (file >> word) {
    int64_t kilobytes = 0;
    if (word == "MemTotal:" && file >> kilobytes) return kilobytes * 1024;
  }
  return -1;
}

TEST(TopologyTest, NodesHaveTheMemoryThatTheKernelNames) {
  const absl::StatusOr<Topology> topology = ReadTopology();
  ASSERT_TRUE(topology.ok()) << topology.status();
  ASSERT_FALSE(topology->nodes.empty());
  for (const NumaNode& node : topology->nodes) {
    const int64_t expected = SysfsMemoryBytes(node.os_index);
    if (expected < 0) GTEST_SKIP() << "sysfs has no node " << node.os_index;
    EXPECT_EQ(node.memory_bytes, expected) << "node " << node.os_index;
  }
}

// Two sockets of four processors, and memory without any.
Topology TwoSockets() {
  Topology topology;
  topology.cpus = {0, 1, 2, 3, 4, 5, 6, 7};
  topology.nodes = {{.os_index = 2, .cpus = {}},
                    {.os_index = 0, .cpus = {0, 2, 4, 6}},
                    {.os_index = 1, .cpus = {1, 3, 5, 7}}};
  return topology;
}

TEST(TopologyTest, ProcessorsOfOneNodeAreNearestToIt) {
  const Topology machine = TwoSockets();
  EXPECT_EQ(NearestNode(machine, {0, 2}), 0);
  EXPECT_EQ(NearestNode(machine, {7}), 1);
}

TEST(TopologyTest, ProcessorsOfSeveralNodesAreNearestToNone) {
  const Topology machine = TwoSockets();
  EXPECT_EQ(NearestNode(machine, machine.cpus), -1);
  EXPECT_EQ(NearestNode(machine, {8}), -1);
  EXPECT_EQ(NearestNode(machine, {}), -1);
}

TEST(TopologyTest, WhereThereIsOneNodeNoneIsChosen) {
  Topology machine = TwoSockets();
  machine.nodes = {{.os_index = 0, .cpus = machine.cpus}};
  EXPECT_EQ(NearestNode(machine, {0, 1}), -1);
}

TEST(TopologyTest, ANodeHasNoMoreAvailableThanItHas) {
  const int64_t total = SysfsMemoryBytes(0);
  if (total < 0) GTEST_SKIP() << "sysfs has no node 0";
  const absl::StatusOr<int64_t> available = AvailableNodeBytes(0);
  ASSERT_TRUE(available.ok()) << available.status();
  EXPECT_GT(*available, 0);
  EXPECT_LE(*available, total);
  EXPECT_TRUE(absl::IsUnavailable(AvailableNodeBytes(4095).status()));
}

TEST(TopologyTest, AnotherMachinesTopologyIsRefused) {
  const std::pair<const char*, const char*> settings[] = {
      {"HWLOC_SYNTHETIC", "node:2 core:2 pu:2"},
      {"HWLOC_XMLFILE", "/nowhere.xml"},
      {"HWLOC_FSROOT", "/nowhere"},
      {"HWLOC_THISSYSTEM", "1"}};
  for (const auto& [name, value] : settings) {
    ASSERT_EQ(setenv(name, value, 1), 0);
    const absl::StatusOr<Topology> topology = ReadTopology();
    ASSERT_EQ(unsetenv(name), 0);
    EXPECT_TRUE(absl::IsUnavailable(topology.status())) << topology.status();
    EXPECT_NE(topology.status().ToString().find(name), std::string::npos);
  }
  EXPECT_TRUE(ReadTopology().ok());
}

TEST(TopologyTest, ANodeThatIsNotThereIsRefused) {
  std::byte byte{};
  for (const int node : {-1, 4095}) {
    const absl::Status status = BindToNode({&byte, 1}, node, Binding::kStrict);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_NE(status.ToString().find("node " + std::to_string(node)),
              std::string::npos)
        << status;
    EXPECT_NE(status.ToString().find("it has 0"), std::string::npos) << status;
  }
}

TEST(TopologyTest, IsReadByAChildThatIsMadeWhileItIsRead) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a child has the locks of the sanitiser's allocator";
#endif
  std::atomic<bool> stop = false;
  std::thread reads([&stop] {
    while (!stop) static_cast<void>(ReadTopology());
  });
  for (int round = 0; round < 20 && !testing::Test::HasFailure(); ++round) {
    EXPECT_TRUE(InChild([] { return ReadTopology().ok(); })) << round;
  }
  stop = true;
  reads.join();
}

}  // namespace
}  // namespace terrace
