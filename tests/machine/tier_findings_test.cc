// What is said of tiers whose facts are given by hand.
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "machine/findings.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

constexpr int64_t kGiB = int64_t{1} << 30;

// Of far memory that lacks nothing.
TierReport GoodFar() {
  TierReport report;
  report.tier = {.kind = TierKind::kFar, .place = "node2"};
  report.named = true;
  report.size_bytes = 64 * kGiB;
  report.free_bytes = 60 * kGiB;
  report.page_bytes = 4096;
  report.huge_page_share = 1;
  report.found_node = 2;
  report.memory_only = true;
  report.can_pin = 1;
  return report;
}

// Of persistent memory that lacks nothing.
TierReport GoodPmem() {
  TierReport report;
  report.tier = {.kind = TierKind::kPmem, .place = "/mnt/pmem0"};
  report.named = true;
  report.size_bytes = 100 * kGiB;
  report.free_bytes = 90 * kGiB;
  report.file_system = "ext4";
  report.source = "/dev/pmem0";
  report.mount_point = "/mnt/pmem0";
  report.granularity = "CACHE_LINE";
  report.bad_bytes = 0;
  return report;
}

class TierFindingsTest : public testing::Test {
 protected:
  std::vector<Finding> Diagnosed() {
    std::vector<Finding> findings;
    DiagnoseTier(tier_, machine_, &findings);
    return findings;
  }
  Finding Only() {
    const std::vector<Finding> findings = Diagnosed();
    EXPECT_THAT(findings, SizeIs(1));
    return findings.size() == 1 ? findings[0] : Finding();
  }
  void Expect(Severity severity, const std::string& what,
              const std::string& command) {
    const Finding finding = Only();
    EXPECT_EQ(finding.severity, severity);
    EXPECT_EQ(finding.subject, TierName(tier_.tier));
    EXPECT_THAT(finding.what, HasSubstr(what));
    EXPECT_EQ(finding.command, command);
  }

  MachineReport machine_;
  TierReport tier_ = GoodFar();
};

TEST_F(TierFindingsTest, GoodTiersHaveNone) {
  EXPECT_THAT(Diagnosed(), IsEmpty());
  tier_ = GoodPmem();
  EXPECT_THAT(Diagnosed(), IsEmpty());
}

TEST_F(TierFindingsTest, AMovableNodeIsMendedByItsDevice) {
  tier_.movable = true;
  tier_.can_pin = 0;
  tier_.pin_error = "its pages left node2 for node0";
  tier_.dax_device = "dax1.0";
  Expect(Severity::kSlower, "movable memory",
         "sudo daxctl offline-memory dax1.0 && sudo daxctl online-memory "
         "--no-movable dax1.0");
  tier_.dax_device = "";
  EXPECT_EQ(Only().command,
            "daxctl list  # then: sudo daxctl offline-memory DEVICE && sudo "
            "daxctl online-memory --no-movable DEVICE");
  tier_.named = false;  // said of every node that there is
  EXPECT_EQ(Only().severity, Severity::kSlower);
}

TEST_F(TierFindingsTest, ANodeThatCannotBePinnedSaysWhy) {
  tier_.can_pin = 0;
  tier_.pin_error = "EOPNOTSUPP (Operation not supported)";
  Expect(Severity::kSlower, "EOPNOTSUPP", "");
  // Which is said of the machine.
  tier_.pin_error = "ENOMEM (Cannot allocate memory)";
  EXPECT_THAT(Diagnosed(), IsEmpty());
  tier_.can_pin = -1;
  tier_.pin_error = "io_uring is refused with EPERM";
  EXPECT_THAT(Diagnosed(), IsEmpty());
}

TEST_F(TierFindingsTest, ANodeThatIsNotThere) {
  tier_ = {};
  tier_.tier = {.kind = TierKind::kFar, .place = "node7"};
  tier_.named = true;
  tier_.status = absl::UnavailableError("there is no node7");
  Expect(Severity::kMissing, "there is no node7",
         "daxctl list  # then: sudo daxctl reconfigure-device "
         "--mode=system-ram --no-movable DEVICE");
  tier_.named = false;
  Expect(Severity::kNote, "there is no node7", "");
  tier_.named = true;
  machine_.processor.topology_error = "hwloc cannot read the machine";
  EXPECT_EQ(Only().command, "");
}

TEST_F(TierFindingsTest, TheNearNodeIsReplacedByOneWithoutProcessors) {
  tier_.tier.place = "node0";
  tier_.status = absl::InvalidArgumentError("node0 is the node of dram");
  Expect(Severity::kMissing, "node of dram", "");
  machine_.processor.nodes = {
      {.index = 0, .cpus = {0}}, {.index = 1, .cpus = {1}}, {.index = 3}};
  EXPECT_EQ(Only().command, "terrace doctor --tier far:node3  # and name that");
  machine_.processor.nodes.pop_back();
  EXPECT_EQ(Only().command, "terrace doctor --tier far:node1  # and name that");
}

TEST_F(TierFindingsTest, ABudgetBeyondWhatIsThereOrFree) {
  tier_.tier.budget_bytes = 60 * kGiB;
  EXPECT_THAT(Diagnosed(), IsEmpty());
  tier_.tier.budget_bytes = 62 * kGiB;
  Expect(Severity::kMissing, "62 GiB; it has 64 GiB, of which 60 GiB are free",
         "terrace doctor --tier 'far:node2=60GiB'  # and name that");
  tier_.free_bytes = -1;
  EXPECT_THAT(Diagnosed(), IsEmpty());
  tier_.tier.budget_bytes = 65 * kGiB;
  Expect(Severity::kMissing, "65 GiB; it has 64 GiB",
         "terrace doctor --tier 'far:node2=64GiB'  # and name that");
  tier_.free_bytes = 1;
  EXPECT_EQ(Only().command, "");
}

TEST_F(TierFindingsTest, PageGranularityOnPersistentMemoryIsMounted) {
  tier_ = GoodPmem();
  tier_.granularity = "PAGE";
  tier_.granularity_cause = "no MAP_SYNC on ext4: EOPNOTSUPP";
  Expect(Severity::kMissing, "granularity PAGE (no MAP_SYNC on ext4",
         "sudo umount /mnt/pmem0 && sudo mount -o dax=always /dev/pmem0 "
         "/mnt/pmem0");
  tier_.source = "/dev/nvme0n1p1";
  EXPECT_THAT(Only().command, HasSubstr("ndctl list --namespaces"));
  EXPECT_THAT(Only().command, Not(HasSubstr("umount")));
}

TEST_F(TierFindingsTest, BadBlocksAreCounted) {
  tier_ = GoodPmem();
  tier_.bad_bytes = 8192;
  Expect(Severity::kSlower, "8 KiB of 100 GiB", "ndctl list --media-errors");
}

TEST_F(TierFindingsTest, LossesOfPowerAreCounted) {
  tier_ = GoodPmem();
  tier_.unsafe_shutdowns = 3;
  Expect(Severity::kNote, "lost 3 times", "ndctl list --dimms --health");
}

TEST_F(TierFindingsTest, EachWayThatAPlaceCannotBeHadHasItsLine) {
  tier_ = GoodPmem();
  const auto command = [&](const absl::Status& status) {
    tier_.status = status;
    EXPECT_EQ(Only().severity, Severity::kMissing) << status;
    return Only().command;
  };
  EXPECT_EQ(command(absl::NotFoundError("/mnt/pmem0: ENOENT")),
            "sudo install -d -o \"$USER\" /mnt/pmem0");
  EXPECT_THAT(Only().what, testing::EndsWith("cannot be had: ENOENT"));
  EXPECT_EQ(command(absl::PermissionDeniedError("EACCES")),
            "sudo install -d -o \"$USER\" /mnt/pmem0/terrace  # and name "
            "that");
  EXPECT_EQ(command(absl::ResourceExhaustedError("ENOSPC")),
            "df -h /mnt/pmem0  # then make room");
  EXPECT_EQ(command(absl::UnimplementedError("no libpmem2")),
            "sudo apt-get install libpmem2-dev  # then build again");
  EXPECT_EQ(command(absl::UnavailableError(
                "persistent memory: PMEM2_FORCE_GRANULARITY is in the "
                "environment: unset it")),
            "unset PMEM2_FORCE_GRANULARITY");
  EXPECT_THAT(command(absl::InvalidArgumentError("no directory")),
              HasSubstr("ndctl list"));
  tier_.tier.place = "/dev/dax0.0";
  EXPECT_EQ(command(absl::PermissionDeniedError("EACCES")),
            "sudo chown \"$USER\" /dev/dax0.0");
  EXPECT_EQ(command(absl::NotFoundError("ENOENT")), "ndctl list --namespaces");
}

TEST_F(TierFindingsTest, AKindThatIsNotThereMakesTheMachineUnusable) {
  tier_ = {};
  tier_.tier = {TierKind::kHbm, "cuda:0", kGiB};
  tier_.named = true;
  tier_.status = absl::UnimplementedError("this machine has no GPU");
  Expect(Severity::kMissing, "no GPU", "");
  machine_.tiers.push_back(tier_);
  machine_.findings = Diagnose(machine_);
  EXPECT_FALSE(machine_.usable());
  bool is_told = false;
  for (const Finding& finding : machine_.findings) {
    is_told |= finding.subject == "hbm:cuda:0";
    // A tier was named in place of a path.
    EXPECT_NE(finding.subject, "paths");
  }
  EXPECT_TRUE(is_told);
}

TEST_F(TierFindingsTest, ADiskThatCannotBeHadIsSaidOfItsPath) {
  tier_ = {};
  tier_.tier = {.kind = TierKind::kDisk, .place = "/mnt/nvme0"};
  tier_.named = true;
  tier_.status = absl::NotFoundError("ENOENT");
  EXPECT_THAT(Diagnosed(), IsEmpty());
}

}  // namespace
}  // namespace terrace
