#include "machine/findings.h"

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// A machine that lacks nothing.
MachineReport GoodMachine() {
  MachineReport report;
  report.processor.cpus = 8;
  report.processor.instruction_set = "AVX2";
  report.memory.total_bytes = int64_t{64} << 30;
  report.memory.available_bytes = int64_t{60} << 30;
  report.memory.transparent = "madvise";
  report.memory.transparent_defrag = "madvise";
  report.memory.huge_page_share = 1;
  report.memory.locked_limit_bytes = kNoLimit;
  report.memory.locked_hard_limit_bytes = kNoLimit;
  report.uring.available = true;
  report.uring.setup_flags = {"DEFER_TASKRUN"};
  report.uring.registered_bytes = report.uring.registered_bytes_tried = 64;
  report.engine = "io_uring";
  report.container.open_files_limit = 20000;
  report.gpu.driver_version = "580.65.06";
  report.gpu.has_cuda = true;
  PathReport path;
  path.path = "/mnt/nvme0";
  path.kind = "directory";
  path.mount_point = "/mnt/nvme0";
  path.file_system = "ext4";
  path.mount_options = "rw,relatime";
  path.free_bytes = int64_t{1} << 40;
  path.direct_io = true;
  path.memory_alignment = path.offset_alignment = 512;
  DriveReport drive;
  drive.name = "nvme0n1";
  drive.transport = "pcie";
  drive.rotational = 0;
  drive.scheduler = "none";
  drive.max_sectors_bytes = drive.max_hw_sectors_bytes = 2 << 20;
  drive.link_width = drive.link_width_max = 4;
  path.drives.push_back(drive);
  path.stack = {"nvme0n1"};
  report.paths.push_back(path);
  return report;
}

class FindingsTest : public testing::Test {
 protected:
  // The one finding of the report.
  Finding Only() {
    const std::vector<Finding> findings = Diagnose(report_);
    EXPECT_THAT(findings, SizeIs(1));
    return findings.size() == 1 ? findings[0] : Finding();
  }
  void Expect(Severity severity, const std::string& subject,
              const std::string& what, const std::string& command) {
    const Finding finding = Only();
    EXPECT_EQ(finding.severity, severity);
    EXPECT_EQ(finding.subject, subject);
    EXPECT_THAT(finding.what, HasSubstr(what));
    EXPECT_EQ(finding.command, command);
  }
  PathReport& path() { return report_.paths[0]; }
  DriveReport& drive() { return path().drives[0]; }

  MachineReport report_ = GoodMachine();
};

TEST_F(FindingsTest, AGoodMachineHasNone) {
  EXPECT_THAT(Diagnose(report_), IsEmpty());
}

TEST_F(FindingsTest, ARingThatTheSettingRefuses) {
  report_.uring = {.error = "EPERM (Operation not permitted)",
                   .disabled_setting = 2};
  report_.container.seccomp = true;
  Expect(Severity::kSlower, "io_uring", "EPERM",
         "sudo sysctl -w kernel.io_uring_disabled=0");
  report_.uring.disabled_setting = 1;
  Expect(Severity::kSlower, "io_uring", "is 1",
         "sudo sysctl -w kernel.io_uring_group=$(id -g)");
}

TEST_F(FindingsTest, ARingThatAContainersFilterRefuses) {
  report_.uring = {.error = "EPERM (Operation not permitted)",
                   .disabled_setting = 0};
  report_.container.seccomp = true;
  report_.container.runtime = "docker";
  Expect(Severity::kSlower, "io_uring", "seccomp",
         "docker run --security-opt seccomp=unconfined ...");
  report_.container.runtime = "podman";
  EXPECT_EQ(Only().command, "podman run --security-opt seccomp=unconfined ...");
  report_.container.runtime = "";
  EXPECT_EQ(Only().command, "");
}

TEST_F(FindingsTest, AKernelWithoutARing) {
  report_.uring = {.error = "ENOSYS (Function not implemented)"};
  Expect(Severity::kSlower, "io_uring", "this kernel has none", "");
}

TEST_F(FindingsTest, NoEngineAtAllIsNotUsable) {
  report_.engine = "";
  report_.engine_reason = "no thread";
  Expect(Severity::kMissing, "engine", "no thread", "");
  report_.findings = Diagnose(report_);
  EXPECT_FALSE(report_.usable());
}

TEST_F(FindingsTest, ALimitOfLockedMemory) {
  report_.memory.locked_limit_bytes = 8 << 20;
  report_.memory.locked_hard_limit_bytes = 8 << 20;
  report_.uring.registered_bytes = 4;
  Expect(Severity::kSlower, "locked memory", "8 MiB",
         "echo \"$USER - memlock unlimited\" | sudo tee "
         "/etc/security/limits.d/terrace.conf  # then log in again");
  report_.memory.locked_hard_limit_bytes = kNoLimit;
  EXPECT_EQ(Only().command, "ulimit -l unlimited");
  report_.container.runtime = "docker";
  EXPECT_EQ(Only().command, "docker run --ulimit memlock=-1:-1 ...");
  report_.memory.locked_limit_exempt = true;
  EXPECT_THAT(Diagnose(report_), IsEmpty());
}

TEST_F(FindingsTest, HugePagesThatAreOff) {
  report_.memory.transparent = "never";
  report_.memory.huge_page_share = 0;
  Expect(Severity::kSlower, "huge pages", "off",
         "echo madvise | sudo tee "
         "/sys/kernel/mm/transparent_hugepage/enabled");
}

TEST_F(FindingsTest, HugePagesThatWereNotHad) {
  report_.memory.huge_page_share = 0.25;
  Expect(Severity::kSlower, "huge pages", "only 25 %",
         "echo 1 | sudo tee /proc/sys/vm/compact_memory");
  report_.memory.transparent_defrag = "never";
  EXPECT_EQ(Only().command,
            "echo madvise | sudo tee "
            "/sys/kernel/mm/transparent_hugepage/defrag");
}

TEST_F(FindingsTest, ALimitOfAGroup) {
  report_.container.memory_limit_bytes = int64_t{2} << 30;
  Expect(Severity::kNote, "limits", "2 GiB", "");
  report_ = GoodMachine();
  report_.container.runtime = "docker";
  report_.container.cpu_limit = 2.5;
  Expect(Severity::kSlower, "limits", "2.5", "docker run --cpus=8 ...");
}

TEST_F(FindingsTest, LimitsOfTheProcess) {
  report_.container.file_size_limit_bytes = 1 << 20;
  Expect(Severity::kSlower, "limits", "1 MiB", "ulimit -f unlimited");
  report_ = GoodMachine();
  report_.container.open_files_limit = 64;
  Expect(Severity::kSlower, "limits", "64", "ulimit -n 1024");
}

TEST_F(FindingsTest, AGpuWithoutItsDriver) {
  report_.gpu = {};
  EXPECT_EQ(Only().severity, Severity::kNote);
  report_.gpu.display_controllers = 1;
  Expect(Severity::kSlower, "gpu", "no driver",
         "sudo apt-get install nvidia-driver");
  report_.gpu.driver_version = "580.65.06";
  report_.container.runtime = "docker";
  EXPECT_EQ(Only().command, "docker run --gpus all ...");
}

TEST_F(FindingsTest, APathThatIsNotThere) {
  path() = PathReport();
  path().path = "/mnt/it's";
  path().status = absl::NotFoundError("path '/mnt/it's': cannot be used");
  Expect(Severity::kMissing, "/mnt/it's", "cannot be used",
         "sudo install -d -o \"$USER\" '/mnt/it'\\''s'");
}

TEST_F(FindingsTest, APathThatIsReadOnly) {
  path().status = absl::PermissionDeniedError("EROFS");
  path().mount_options = "ro,relatime";
  Expect(Severity::kMissing, "/mnt/nvme0", "EROFS",
         "sudo mount -o remount,rw /mnt/nvme0");
  path().mount_options = "rw,errors=remount-ro";
  EXPECT_EQ(Only().command,
            "sudo install -d -o \"$USER\" /mnt/nvme0/terrace  # and name that");
}

TEST_F(FindingsTest, FileSystemsThatAreNoDrive) {
  path().file_system = "tmpfs";
  path().file_system_kind = FileSystemKind::kMemory;
  Expect(Severity::kSlower, "/mnt/nvme0", "host memory", "");
  path().file_system_kind = FileSystemKind::kLayered;
  Expect(Severity::kSlower, "/mnt/nvme0", "layer",
         "docker run -v DIRECTORY:/mnt/nvme0 ...");
  path().file_system_kind = FileSystemKind::kNetwork;
  EXPECT_THAT(Only().what, HasSubstr("network"));
  path().file_system = "fuse.sshfs";
  path().file_system_kind = FileSystemKind::kUserSpace;
  Expect(Severity::kSlower, "/mnt/nvme0", "fuse.sshfs is served by a process",
         "");
  EXPECT_THAT(Only().what, HasSubstr("threads are taken"));
}

TEST_F(FindingsTest, WaysToMountThatCost) {
  path().file_system = "btrfs";
  Expect(Severity::kSlower, "/mnt/nvme0", "btrfs", "sudo chattr +C /mnt/nvme0");
  path().mount_options = "rw,nodatacow";
  EXPECT_THAT(Diagnose(report_), IsEmpty());
  path().mount_options = "rw,nodatacow,barrier=0";
  EXPECT_EQ(Only().command, "sudo mount -o remount,barrier=1 /mnt/nvme0");
}

TEST_F(FindingsTest, WithoutDirectIo) {
  path().direct_io = false;
  path().direct_io_error = "EINVAL";
  Expect(Severity::kSlower, "/mnt/nvme0", "EINVAL", "");
}

TEST_F(FindingsTest, SettingsOfADrive) {
  drive().scheduler = "kyber";
  Expect(Severity::kSlower, "nvme0n1", "kyber",
         "echo none | sudo tee /sys/block/nvme0n1/queue/scheduler");
  drive().scheduler = "none";
  drive().max_sectors_bytes = 128 << 10;
  Expect(Severity::kSlower, "nvme0n1", "128 KiB",
         "echo 1024 | sudo tee /sys/block/nvme0n1/queue/max_sectors_kb");
  drive().max_hw_sectors_bytes = 256 << 10;
  EXPECT_EQ(Only().command,
            "echo 256 | sudo tee /sys/block/nvme0n1/queue/max_sectors_kb");
  drive().max_sectors_bytes = 256 << 10;
  EXPECT_THAT(Diagnose(report_), IsEmpty());
  drive().link_width = 2;
  EXPECT_THAT(Only().what, HasSubstr("2 of its 4"));
}

TEST_F(FindingsTest, ADriveThatRotatesUnlessItIsVirtual) {
  drive().name = "sda";
  drive().rotational = 1;
  EXPECT_THAT(Only().what, HasSubstr("rotates"));
  drive().transport = "virtio";
  EXPECT_THAT(Diagnose(report_), IsEmpty());
}

TEST_F(FindingsTest, TwoPathsOfOneDriveAreToldOnce) {
  drive().scheduler = "kyber";
  report_.paths.push_back(report_.paths[0]);
  report_.paths[1].path = "/mnt/other";
  const std::vector<Finding> findings = Diagnose(report_);
  ASSERT_THAT(findings, SizeIs(2));
  EXPECT_EQ(findings[0].subject, "nvme0n1");
  EXPECT_EQ(findings[1].severity, Severity::kNote);
  EXPECT_EQ(findings[1].subject, "/mnt/other");
  EXPECT_THAT(findings[1].what, HasSubstr("/mnt/nvme0"));
}

TEST_F(FindingsTest, APathThatCannotBeUsedSharesNothing) {
  report_.paths.push_back(report_.paths[0]);
  report_.paths[1].path = "/mnt/other";
  report_.paths[1].status = absl::UnavailableError("EIO");
  Expect(Severity::kMissing, "/mnt/other", "EIO", "");
}

TEST_F(FindingsTest, TheWorstComesFirst) {
  report_.paths.clear();                        // a note
  report_.memory.transparent = "never";         // slower
  report_.uring.missing_operations = {"READ"};  // missing
  const std::vector<Finding> findings = Diagnose(report_);
  ASSERT_THAT(findings, SizeIs(3));
  EXPECT_EQ(findings[0].severity, Severity::kMissing);
  EXPECT_EQ(findings[1].severity, Severity::kSlower);
  EXPECT_EQ(findings[2].severity, Severity::kNote);
}

}  // namespace
}  // namespace terrace
