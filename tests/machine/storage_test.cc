#include "machine/storage.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/machine/pseudo_root.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr char kNvme0[] =
    "/sys/devices/pci0000:00/0000:00:05.0/nvme/nvme0/nvme0n1";
constexpr char kNvme1[] =
    "/sys/devices/pci0000:00/0000:00:06.0/nvme/nvme1/nvme1n1";

class StorageTest : public testing::Test {
 protected:
  // A namespace, the controller that is its device, and PCI's device of that.
  void AddNvme(const std::string& folder, const std::string& number,
               const std::string& serial) {
    root_.AddDevice(folder, number);
    const std::string controller = folder.substr(0, folder.rfind('/'));
    const std::string pci = controller.substr(0, controller.rfind("/nvme/"));
    root_.Link(folder + "/device", controller);
    root_.Link(controller + "/device", pci);
    root_.Write(controller + "/model", "A Fast Drive 2TB   \n");
    root_.Write(controller + "/serial", serial + "  \n");
    root_.Write(controller + "/transport", "pcie\n");
    root_.Write(controller + "/numa_node", "1\n");
    root_.Write(pci + "/current_link_width", "2\n");
    root_.Write(pci + "/max_link_width", "4\n");
    root_.Write(folder + "/size", "4000000\n");
    const std::string queue = folder + "/queue/";
    root_.Write(queue + "rotational", "0\n");
    root_.Write(queue + "max_sectors_kb", "128\n");
    root_.Write(queue + "max_hw_sectors_kb", "2048\n");
    root_.Write(queue + "max_segments", "127\n");
    root_.Write(queue + "nr_requests", "1023\n");
    root_.Write(queue + "scheduler", "[none] mq-deadline kyber\n");
    root_.Write(queue + "write_cache", "write back\n");
    root_.Write(queue + "logical_block_size", "512\n");
    root_.Write(queue + "physical_block_size", "4096\n");
  }

  PathReport Find(unsigned major, unsigned minor,
                  const std::string& source = "") {
    PathReport report;
    FindDrives(root_.files(), major, minor, source, &report);
    return report;
  }
  static std::vector<std::string> Names(const PathReport& report) {
    std::vector<std::string> names;
    for (const DriveReport& drive : report.drives) names.push_back(drive.name);
    return names;
  }

  PseudoRoot root_;
};

TEST_F(StorageTest, APartitionLeadsToItsDriveAndAllThatItSays) {
  AddNvme(kNvme0, "259:0", "S1");
  root_.AddDevice(std::string(kNvme0) + "/nvme0n1p2", "259:2");
  root_.Write(std::string(kNvme0) + "/nvme0n1p2/partition", "2\n");
  const PathReport report = Find(259, 2);
  EXPECT_THAT(report.stack, ElementsAre("nvme0n1p2 (partition)", "nvme0n1"));
  ASSERT_EQ(report.drives.size(), 1u);
  const DriveReport& drive = report.drives[0];
  EXPECT_EQ(drive.name, "nvme0n1");
  EXPECT_EQ(drive.model, "A Fast Drive 2TB");
  EXPECT_EQ(drive.serial, "S1");
  EXPECT_EQ(drive.transport, "pcie");
  EXPECT_EQ(drive.size_bytes, 2048000000);
  EXPECT_EQ(drive.rotational, 0);
  EXPECT_EQ(drive.max_sectors_bytes, 128 << 10);
  EXPECT_EQ(drive.max_hw_sectors_bytes, 2048 << 10);
  EXPECT_EQ(drive.max_segments, 127);
  EXPECT_EQ(drive.queue_requests, 1023);
  EXPECT_EQ(drive.scheduler, "none");
  EXPECT_EQ(drive.write_cache, "write back");
  EXPECT_EQ(drive.logical_block_bytes, 512);
  EXPECT_EQ(drive.physical_block_bytes, 4096);
  EXPECT_EQ(drive.numa_node, 1);
  EXPECT_EQ(drive.link_width, 2);
  EXPECT_EQ(drive.link_width_max, 4);
}

TEST_F(StorageTest, AMappedDeviceLeadsToAllItsDrives) {
  AddNvme(kNvme0, "259:0", "S1");
  AddNvme(kNvme1, "259:1", "S2");
  const std::string mapped = "/sys/devices/virtual/block/dm-0";
  root_.AddDevice(mapped, "253:0");
  root_.Write(mapped + "/dm/name", "vg-data\n");
  root_.Write(mapped + "/dm/uuid", "LVM-abcdef\n");
  root_.Link(mapped + "/slaves/nvme0n1", kNvme0);
  root_.Link(mapped + "/slaves/nvme1n1", kNvme1);
  const PathReport report = Find(253, 0);
  EXPECT_THAT(report.stack,
              ElementsAre("dm-0 (LVM vg-data)", "nvme0n1", "nvme1n1"));
  EXPECT_THAT(Names(report), ElementsAre("nvme0n1", "nvme1n1"));
  EXPECT_EQ(report.drives[1].serial, "S2");
}

TEST_F(StorageTest, AnArrayOfPartitionsOfOneDriveHasThatDriveOnce) {
  AddNvme(kNvme0, "259:0", "S1");
  const std::string array = "/sys/devices/virtual/block/md127";
  root_.AddDevice(array, "9:127");
  root_.Write(array + "/md/level", "raid0\n");
  for (const std::string part : {"nvme0n1p1", "nvme0n1p2"}) {
    const std::string folder = std::string(kNvme0) + "/" + part;
    root_.Write(folder + "/partition", part.substr(8) + "\n");
    root_.Link(array + "/slaves/" + part, folder);
  }
  const PathReport report = Find(9, 127);
  EXPECT_THAT(report.stack,
              ElementsAre("md127 (raid0)", "nvme0n1p1 (partition)", "nvme0n1",
                          "nvme0n1p2 (partition)"));
  EXPECT_THAT(Names(report), ElementsAre("nvme0n1"));
}

TEST_F(StorageTest, DevicesStackedInACircleEnd) {
  const std::string folder = "/sys/devices/virtual/block/";
  root_.AddDevice(folder + "dm-0", "253:0");
  root_.AddDevice(folder + "dm-1", "253:1");
  root_.Link(folder + "dm-0/slaves/dm-1", folder + "dm-1");
  root_.Link(folder + "dm-1/slaves/dm-0", folder + "dm-0");
  EXPECT_THAT(Find(253, 0).stack, ElementsAre("dm-0", "dm-1"));
}

TEST_F(StorageTest, AnAnonymousNumberIsFoundByTheMountsSource) {
  AddNvme(kNvme0, "259:0", "S1");
  EXPECT_THAT(Names(Find(0, 45, "/dev/nvme0n1")), ElementsAre("nvme0n1"));
  // /dev/mapper names are links.
  root_.Write("/dev/nvme0n1", "");
  root_.Link("/dev/mapper/fast", "/dev/nvme0n1");
  EXPECT_THAT(Names(Find(0, 45, "/dev/mapper/fast")), ElementsAre("nvme0n1"));
}

TEST_F(StorageTest, WithoutABlockDeviceThereIsNoDrive) {
  for (const std::string source :
       {"overlay", "tmpfs", "host:/a", "/dev/gone"}) {
    const PathReport report = Find(0, 45, source);
    EXPECT_THAT(report.stack, IsEmpty()) << source;
    EXPECT_THAT(report.drives, IsEmpty()) << source;
  }
}

TEST_F(StorageTest, ADriveThatTellsNothingIsUnknown) {
  root_.AddDevice("/sys/devices/platform/block/sdz", "8:99");
  const PathReport report = Find(8, 99);
  ASSERT_EQ(report.drives.size(), 1u);
  const DriveReport& drive = report.drives[0];
  EXPECT_EQ(drive.size_bytes, -1);
  EXPECT_EQ(drive.rotational, -1);
  EXPECT_EQ(drive.max_sectors_bytes, -1);
  EXPECT_EQ(drive.numa_node, -1);
  EXPECT_EQ(drive.model, "");
}

class MountsTest : public testing::Test {
 protected:
  MountsTest() {
    root_.Write(
        "/proc/self/mountinfo",
        "20 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n"
        "21 20 0:30 / /mnt rw shared:5 master:1 - tmpfs none rw,size=9k\n"
        "22 20 0:31 / /mnt/a\\040b ro,noatime - overlay overlay "
        "rw,lowerdir=/l,upperdir=/u\n"
        "23 20 0:32 / /mnt rw shared:7 - nfs4 host:/export rw,vers=4.2\n"
        "a line that is none\n");
    mounts_ = ReadMounts(root_.files());
  }
  std::string TypeOf(const std::string& path, int64_t id = -1) {
    const Mount* mount = FindMount(mounts_, id, path);
    return mount == nullptr ? "none" : mount->file_system;
  }

  PseudoRoot root_;
  std::vector<Mount> mounts_;
};

TEST_F(MountsTest, EachFieldIsRead) {
  ASSERT_EQ(mounts_.size(), 4u);
  EXPECT_EQ(mounts_[0].id, 20);
  EXPECT_EQ(mounts_[0].major, 254u);
  EXPECT_EQ(mounts_[0].minor, 0u);
  EXPECT_EQ(mounts_[0].source, "/dev/vda");
  EXPECT_EQ(mounts_[2].point, "/mnt/a b");
  EXPECT_EQ(mounts_[2].options, "ro,noatime,rw,lowerdir=/l,upperdir=/u");
}

TEST_F(MountsTest, ANumberDecidesElseTheLongestThenTheLatestPoint) {
  EXPECT_EQ(TypeOf("/mnt/x", 21), "tmpfs");
  EXPECT_EQ(TypeOf("/mnt/x"), "nfs4");
  EXPECT_EQ(TypeOf("/mnt"), "nfs4");
  EXPECT_EQ(TypeOf("/mnt/a b/c"), "overlay");
  EXPECT_EQ(TypeOf("/mntx"), "ext4");
}

TEST(FileSystemKindTest, NamesDecide) {
  EXPECT_EQ(KindOf("xfs"), FileSystemKind::kDisk);
  EXPECT_EQ(KindOf("tmpfs"), FileSystemKind::kMemory);
  EXPECT_EQ(KindOf("overlay"), FileSystemKind::kLayered);
  EXPECT_EQ(KindOf("nfs4"), FileSystemKind::kNetwork);
  EXPECT_EQ(KindOf("fuse.sshfs"), FileSystemKind::kUserSpace);
}

}  // namespace
}  // namespace terrace
