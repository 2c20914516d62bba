// What is read of tiers, against what this machine says by another way. Nodes
// that it lacks are given by hand.
#include "machine/tier_facts.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "aio/uring_probe.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/machine/pseudo_root.h"
#include "tests/support/device/threaded_device.h"
#include "tests/support/own_child.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kCannotRestrict = 77;

TierSpec Node(TierKind kind, int node) {
  return {.kind = kind, .place = "node" + std::to_string(node)};
}

// The first node of this machine, as hwloc has it.
NumaNode RealNode() {
  const absl::StatusOr<Topology> topology = ReadTopology();
  return topology.ok() && !topology->nodes.empty() ? topology->nodes[0]
                                                   : NumaNode();
}

class TierFactsTest : public testing::Test {
 protected:
  TierReport Probe(const TierSpec& tier, int near_node = -1) {
    return ProbeTier(root_.files(), topology_, near_node, machine_, tier);
  }
  PseudoRoot root_;
  NumaNode node_ = RealNode();
  Topology topology_ = {.nodes = {node_}};
  MachineReport machine_;
};

TEST_F(TierFactsTest, NodesWithoutProcessorsAreFar) {
  Topology topology;
  topology.nodes = {{.os_index = 0, .cpus = {0}}, {.os_index = 4}};
  EXPECT_THAT(NodesAsTiers(topology),
              ElementsAre(Node(TierKind::kDram, 0), Node(TierKind::kFar, 4)));
}

TEST_F(TierFactsTest, ANodeIsSeenByItsOwnMemory) {
  const PseudoFiles files("");
  const std::string total =
      files.Field("/sys/devices/system/node/node" +
                      std::to_string(node_.os_index) + "/meminfo",
                  "Node " + std::to_string(node_.os_index) + " MemTotal");
  if (total.empty()) GTEST_SKIP() << "the kernel lists no node";
  const TierReport report = Probe(Node(TierKind::kDram, node_.os_index));
  ASSERT_TRUE(report.status.ok()) << report.status;
  EXPECT_EQ(report.size_bytes, std::atoll(total.c_str()) * 1024);
  EXPECT_GT(report.free_bytes, 0);
  EXPECT_LE(report.free_bytes, report.size_bytes);
  EXPECT_EQ(report.page_bytes, getpagesize());
  EXPECT_GE(report.huge_page_share, 0);
  EXPECT_EQ(report.found_node, node_.os_index);
  EXPECT_EQ(report.memory_only, node_.cpus.empty());
  EXPECT_EQ(report.movable, node_.movable);
  EXPECT_EQ(report.granularity, "");
}

TEST_F(TierFactsTest, FreeMemoryIsCutToWhatLimitsLeave) {
  machine_.memory.available_bytes = 12345;
  machine_.memory.total_bytes = 23456;
  EXPECT_EQ(Probe(Node(TierKind::kDram, node_.os_index)).free_bytes, 12345);
  const TierReport any = Probe({.kind = TierKind::kDram, .budget_bytes = 1});
  EXPECT_EQ(any.size_bytes, 23456);
  EXPECT_EQ(any.free_bytes, 12345);
  EXPECT_TRUE(any.status.ok()) << any.status;
}

TEST_F(TierFactsTest, CanPinWhereARingCanRegister) {
  const UringReport ring = ProbeUring();
  const TierReport report = Probe(Node(TierKind::kDram, node_.os_index));
  if (!ring.available) {
    EXPECT_EQ(report.can_pin, -1);
    EXPECT_THAT(report.pin_error, HasSubstr("io_uring is refused"));
  } else if (ring.registered_bytes == ring.registered_bytes_tried) {
    EXPECT_EQ(report.can_pin, 1) << report.pin_error;
    EXPECT_EQ(report.pin_error, "");
  } else {
    GTEST_SKIP() << "a limit of locked memory decides: " << report.pin_error;
  }
}

TEST_F(TierFactsTest, ALimitOfLockedMemoryIsToldByItsErrno) {
  const int code = ExitCodeInChild([this] {
    if (!BecomeAUserWhoMayLock(1 << 20)) std::_Exit(kCannotRestrict);
    if (!ProbeUring().available) std::_Exit(kCannotRestrict);
    const TierReport report = Probe(Node(TierKind::kDram, node_.os_index));
    const bool told =
        report.can_pin == 0 && report.pin_error.rfind("ENOMEM", 0) == 0;
    std::_Exit(told ? 0 : 1);
  });
  if (code == kCannotRestrict) GTEST_SKIP() << "no ring, or no limit, here";
  EXPECT_EQ(code, 0);
}

TEST(TryPinTest, WithoutARingNothingTells) {
  const int code = ExitCodeInChild([] {
    if (!ProbeUring().available) std::_Exit(kCannotRestrict);
    std::vector<std::byte> bytes(8192);
    rlimit none = {};
    getrlimit(RLIMIT_NOFILE, &none);
    none.rlim_cur = 0;
    if (setrlimit(RLIMIT_NOFILE, &none) != 0) std::_Exit(kCannotRestrict);
    const auto tried = TryPin(absl::MakeSpan(bytes));
    const std::string text = tried.status().ToString();
    std::_Exit(absl::IsUnavailable(tried.status()) &&
                       text.find("EMFILE") != std::string::npos &&
                       text.find("8192") != std::string::npos
                   ? 0
                   : 1);
  });
  if (code == kCannotRestrict) GTEST_SKIP() << "no ring, or no limit, here";
  EXPECT_EQ(code, 0);
}

TEST(TryPinTest, WhatIsNotMappedIsRefusedWithItsErrno) {
  if (!ProbeUring().available) GTEST_SKIP() << "no ring";
  auto* const nowhere = reinterpret_cast<std::byte*>(4096);
  const auto tried = TryPin(absl::MakeSpan(nowhere, 4096));
  ASSERT_TRUE(tried.ok()) << tried.status();
  EXPECT_THAT(*tried, testing::StartsWith("EFAULT"));
}

TEST_F(TierFactsTest, AMovableNodeNamesTheDeviceWhoseMemoryItIs) {
  topology_.nodes[0].movable = true;
  topology_.nodes[0].cpus.clear();
  topology_.nodes.push_back({.os_index = node_.os_index + 1, .cpus = {0}});
  const std::string devices = "/sys/bus/dax/devices/";
  root_.Write(devices + "dax0.0/target_node", "77\n");
  root_.Write(devices + "dax1.0/target_node",
              std::to_string(node_.os_index) + "\n");
  const TierReport report =
      Probe(Node(TierKind::kFar, node_.os_index), node_.os_index + 1);
  EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_TRUE(report.movable);
  EXPECT_TRUE(report.memory_only);
  EXPECT_EQ(report.dax_device, "dax1.0");
  EXPECT_EQ(report.found_node, node_.os_index);
}

TEST_F(TierFactsTest, NodesThatCannotBeFarAreRefused) {
  const int index = node_.os_index;
  EXPECT_TRUE(
      absl::IsInvalidArgument(Probe(Node(TierKind::kFar, index)).status));
  topology_.nodes.push_back({.os_index = index + 1, .memory_bytes = 1 << 20});
  TierReport report = Probe(Node(TierKind::kFar, index), index);
  EXPECT_TRUE(absl::IsInvalidArgument(report.status)) << report.status;
  EXPECT_THAT(report.status.ToString(), HasSubstr("dram is on"));
  report = Probe(Node(TierKind::kFar, index + 9), index);
  EXPECT_TRUE(absl::IsUnavailable(report.status)) << report.status;
  EXPECT_EQ(report.size_bytes, -1);
  EXPECT_EQ(report.can_pin, -1);
}

TEST_F(TierFactsTest, ANodeWhoseMemoryCannotBeTakenIsRefused) {
  constexpr int kNone = 4000;
  topology_.nodes.push_back({.os_index = kNone, .memory_bytes = 1 << 20});
  const TierReport report = Probe(Node(TierKind::kFar, kNone), node_.os_index);
  EXPECT_TRUE(absl::IsUnavailable(report.status)) << report.status;
  EXPECT_THAT(report.status.ToString(), HasSubstr("4000"));
  EXPECT_EQ(report.size_bytes, 1 << 20);
  EXPECT_EQ(report.page_bytes, -1);
}

TEST_F(TierFactsTest, OrdinaryFilesPersistByPageOnly) {
  const TemporaryDirectory directory;
  const TierReport report =
      Probe({.kind = TierKind::kPmem, .place = directory.path()});
  if (absl::IsUnimplemented(report.status)) GTEST_SKIP() << report.status;
  ASSERT_TRUE(report.status.ok()) << report.status;
  struct statvfs space = {};
  ASSERT_EQ(statvfs(directory.path().c_str(), &space), 0);
  EXPECT_EQ(report.size_bytes,
            static_cast<int64_t>(space.f_blocks * space.f_frsize));
  EXPECT_GT(report.free_bytes, 0);
  EXPECT_EQ(report.bad_bytes, 0);
  EXPECT_FALSE(report.file_system.empty());
  EXPECT_TRUE(directory.empty());
  if (report.granularity != "PAGE") GTEST_SKIP() << report.granularity_cause;
  EXPECT_THAT(report.granularity_cause, HasSubstr(report.file_system));
}

TEST_F(TierFactsTest, APlaceThatIsNotThereSaysSo) {
  const TemporaryDirectory directory;
  const TierReport report =
      Probe({.kind = TierKind::kPmem, .place = directory.path() + "/none"});
  if (absl::IsUnimplemented(report.status)) GTEST_SKIP() << report.status;
  EXPECT_TRUE(absl::IsNotFound(report.status)) << report.status;
  EXPECT_EQ(report.size_bytes, -1);
  EXPECT_TRUE(absl::IsNotFound(
      Probe({.kind = TierKind::kDisk, .place = "/not/looked/at"}).status));
}

TEST_F(TierFactsTest, ADeviceThatIsNotThereSaysWhatThereIs) {
  const TierSpec hbm = {TierKind::kHbm, "cuda:4095", 1 << 20};
  EXPECT_TRUE(absl::IsUnavailable(Probe(hbm).status));
  EXPECT_THAT(Probe(hbm).status.ToString(), HasSubstr("no GPU"));
  machine_.gpu.devices.push_back(
      {.name = "Card", .memory_bytes = int64_t{80} << 30});
  EXPECT_THAT(Probe(hbm).status.ToString(), HasSubstr("Card with 80 GiB"));
}

// Without taking any; disks and memory itself are not looked at.
TEST(CheckMappedTiersTest, WhatCannotBeHadIsNamedAsCreateDoes) {
  const TemporaryDirectory directory;
  const TierSpec pmem = {TierKind::kPmem, directory.path(), 1 << 20};
  const auto check = [](const TierSpec& tier, bool unsafe_media) {
    return CheckMappedTiers(
        {{TierKind::kDram, "", 1}, {TierKind::kDisk, "/none", 1}, tier},
        unsafe_media);
  };
  EXPECT_TRUE(CheckMappedTiers({}, false).ok());
  EXPECT_TRUE(check({TierKind::kDisk, "/nor/this", 1}, false).ok());
  const absl::Status far = check(Node(TierKind::kFar, 1023), false);
  EXPECT_TRUE(absl::IsUnavailable(far)) << far;
  EXPECT_THAT(far.ToString(), HasSubstr("tier 'far:node1023': there is no "));
  const absl::Status unsafe = check(pmem, true);
  if (absl::IsUnimplemented(unsafe)) GTEST_SKIP() << unsafe;
  EXPECT_TRUE(unsafe.ok()) << unsafe;
  const absl::Status safe = check(pmem, false);
  EXPECT_TRUE(safe.ok() || absl::IsUnavailable(safe)) << safe;
  if (!safe.ok()) {
    EXPECT_THAT(safe.ToString(), HasSubstr("granularity PAGE"));
    EXPECT_THAT(safe.ToString(), HasSubstr("tier '" + TierText(pmem) + "': "));
  }
  const absl::Status more =
      check({TierKind::kPmem, directory.path(), int64_t{1} << 60}, true);
  EXPECT_TRUE(absl::IsInvalidArgument(more)) << more;
  EXPECT_THAT(more.ToString(), HasSubstr("and there are "));
  const absl::Status none =
      check({TierKind::kPmem, directory.path() + "/none", 4096}, true);
  EXPECT_TRUE(absl::IsNotFound(none)) << none;
  EXPECT_TRUE(directory.empty());
}

TEST(DeviceFacts, ADeviceIsAskedForMemoryAndAPin) {
  ThreadedDevice device({.capacity_bytes = 64 << 20});
  TierReport report;
  EXPECT_TRUE(TryDevice(device, &report).ok());
  EXPECT_EQ(report.can_pin, 1);
  EXPECT_EQ(device.bytes().used_bytes(), 0);  // nothing stays taken
  EXPECT_EQ(device.bytes().registered_pieces(), 0);
}

TEST(DeviceFacts, WhatItRefusesIsSaid) {
  ThreadedDevice device({.capacity_bytes = 64 << 20});
  device.script().Fail(DeviceCallKind::kRegister, 0,
                       {.at_once = absl::ResourceExhaustedError("ENOMEM")});
  TierReport report;
  EXPECT_TRUE(TryDevice(device, &report).ok());
  EXPECT_EQ(report.can_pin, 0);
  EXPECT_THAT(report.pin_error, HasSubstr("ENOMEM"));
  ThreadedDevice full({.capacity_bytes = 1 << 20});
  EXPECT_TRUE(absl::IsResourceExhausted(TryDevice(full, &report)));
}

TEST(ReadTiersTest, WithoutANameEachNodeIsATier) {
  const absl::StatusOr<Topology> topology = ReadTopology();
  ASSERT_TRUE(topology.ok()) << topology.status();
  const MachineReport report = ProbeMachine({});
  ASSERT_THAT(report.tiers, SizeIs(topology->nodes.size()));
  for (size_t i = 0; i < report.tiers.size(); ++i) {
    EXPECT_EQ(NodeOf(report.tiers[i].tier), topology->nodes[i].os_index);
    EXPECT_FALSE(report.tiers[i].named);
  }
}

TEST(ReadTiersTest, ADiskIsLookedAtOnceAsAPath) {
  const TemporaryDirectory directory;
  const TierSpec disk = {.kind = TierKind::kDisk, .place = directory.path()};
  const MachineReport report = ProbeMachine({directory.path()}, {disk});
  ASSERT_THAT(report.paths, SizeIs(1));
  ASSERT_THAT(report.tiers, SizeIs(1));
  EXPECT_TRUE(report.tiers[0].named);
  EXPECT_EQ(report.tiers[0].size_bytes, report.paths[0].total_bytes);
  EXPECT_EQ(report.tiers[0].file_system, report.paths[0].file_system);
  EXPECT_THAT(ProbeMachine({}, {disk}).paths, SizeIs(1));
  EXPECT_THAT(
      ProbeMachine({}, {{.kind = TierKind::kDram, .budget_bytes = 1}}).paths,
      IsEmpty());
}

}  // namespace
}  // namespace terrace
