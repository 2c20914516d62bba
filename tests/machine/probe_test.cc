// The probes against what the machine itself says by another way.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "aio/uring_probe.h"
#include "gtest/gtest.h"
#include "terrace/machine.h"
#include "tests/support/own_child.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

TEST(ProbeMachineTest, SaysWhatTheSystemCallsSay) {
  const TemporaryDirectory directory;
  const MachineReport report = ProbeMachine({directory.path()});
  utsname names = {};
  ASSERT_EQ(uname(&names), 0);
  EXPECT_EQ(report.kernel, names.release);
  EXPECT_EQ(report.architecture, names.machine);
  cpu_set_t cpus;
  ASSERT_EQ(sched_getaffinity(0, sizeof cpus, &cpus), 0);
  EXPECT_EQ(report.processor.cpus, CPU_COUNT(&cpus));
  EXPECT_GE(report.processor.cpus, report.processor.cores);
  EXPECT_EQ(report.processor.instruction_set, InstructionSetName());
  EXPECT_EQ(report.memory.total_bytes,
            sysconf(_SC_PHYS_PAGES) * int64_t{sysconf(_SC_PAGESIZE)});
  EXPECT_LE(report.memory.available_bytes, report.memory.total_bytes);
  rlimit locked = {};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &locked), 0);
  EXPECT_EQ(report.memory.locked_limit_bytes,
            locked.rlim_cur == RLIM_INFINITY
                ? kNoLimit
                : static_cast<int64_t>(locked.rlim_cur));
  EXPECT_TRUE(report.usable());
}

TEST(ProbeMachineTest, SaysOfAPathWhatStatvfsSaysAndLeavesNothing) {
  const TemporaryDirectory directory;
  const MachineReport report = ProbeMachine({directory.path()});
  ASSERT_EQ(report.paths.size(), 1u);
  const PathReport& path = report.paths[0];
  EXPECT_TRUE(path.status.ok()) << path.status;
  EXPECT_EQ(path.kind, "directory");
  struct statvfs space = {};
  ASSERT_EQ(statvfs(directory.path().c_str(), &space), 0);
  EXPECT_EQ(path.total_bytes,
            static_cast<int64_t>(space.f_blocks * space.f_frsize));
  EXPECT_NEAR(static_cast<double>(path.free_bytes),
              static_cast<double>(space.f_bavail * space.f_frsize), 4e9);
  EXPECT_FALSE(path.file_system.empty());
  EXPECT_FALSE(path.mount_point.empty());
  if (path.direct_io) {
    // The least that works is no more than what statx asks for.
    EXPECT_GT(path.offset_alignment, 0);
    if (path.told_offset_alignment > 0) {
      EXPECT_LE(path.offset_alignment, path.told_offset_alignment);
    }
  } else {
    EXPECT_FALSE(path.direct_io_error.empty());
  }
  EXPECT_TRUE(directory.empty());
}

TEST(ProbeMachineTest, FindsTheDriveThatItsNumberNames) {
  const TemporaryDirectory directory;
  struct stat found = {};
  ASSERT_EQ(stat(directory.path().c_str(), &found), 0);
  const std::string number = std::to_string(major(found.st_dev)) + ":" +
                             std::to_string(minor(found.st_dev));
  std::ifstream events("/sys/dev/block/" + number + "/uevent");
  std::string line;
  std::string name;
  while (std::getline(events, line)) {
    if (line.rfind("DEVNAME=", 0) == 0) name = line.substr(8);
  }
  if (name.empty()) GTEST_SKIP() << "no block device is number " << number;
  const MachineReport report = ProbeMachine({directory.path()});
  ASSERT_FALSE(report.paths[0].stack.empty());
  EXPECT_EQ(report.paths[0].stack[0].substr(0, name.size()), name);
  ASSERT_FALSE(report.paths[0].drives.empty());
  EXPECT_GT(report.paths[0].drives[0].size_bytes, 0);
}

TEST(ProbeMachineTest, MemoryIsNoDrive) {
  TemporaryDirectory directory;
  if (!directory.MountTmpfs("size=1m")) GTEST_SKIP() << "no mount allowed";
  const MachineReport report = ProbeMachine({directory.path()});
  const PathReport& path = report.paths[0];
  EXPECT_EQ(path.file_system, "tmpfs");
  EXPECT_EQ(path.file_system_kind, FileSystemKind::kMemory);
  EXPECT_EQ(path.mount_point,
            std::filesystem::canonical(directory.path()).string());
  EXPECT_EQ(path.total_bytes, 1 << 20);
  EXPECT_TRUE(path.drives.empty());
  EXPECT_TRUE(report.usable());
}

TEST(ProbeMachineTest, FilesAreOnlyRead) {
  const TemporaryDirectory directory;
  const std::string text(100000, 'x');
  const std::string file = directory.Write("file", text);
  const MachineReport report = ProbeMachine({file});
  EXPECT_EQ(report.paths[0].kind, "file");
  EXPECT_TRUE(report.paths[0].status.ok()) << report.paths[0].status;
  std::stringstream now;
  now << std::ifstream(file).rdbuf();
  EXPECT_EQ(now.str(), text);
}

TEST(ProbeMachineTest, PathsThatCannotServeAreNamed) {
  const TemporaryDirectory directory;
  const std::string missing = directory.path() + "/missing";
  const MachineReport report = ProbeMachine({missing, "/dev/null"});
  EXPECT_FALSE(report.usable());
  EXPECT_TRUE(absl::IsNotFound(report.paths[0].status));
  EXPECT_TRUE(absl::IsInvalidArgument(report.paths[1].status));
  ASSERT_GE(report.findings.size(), 2u);
  EXPECT_EQ(report.findings[0].subject, missing);
  EXPECT_EQ(report.findings[1].subject, "/dev/null");
}

constexpr int kCannotRestrict = 77;

// As a container's profile does: the ring's calls (425 to 427) answer EPERM.
bool RefuseRings() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 425, 0, 2),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 427, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {std::size(filter), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Null: all as it should be.
const char* WhatIsWrongWithoutRings() {
  const MachineReport report = ProbeMachine({});
  if (report.uring.available) return "a ring";
  if (report.uring.error.rfind("EPERM", 0) != 0) return "another errno";
  if (!report.container.seccomp) return "the filter is not seen";
  if (report.engine != "threads") return "another engine";
  if (!report.usable()) return "not usable";
  for (const Finding& finding : report.findings) {
    if (finding.subject != "io_uring") continue;
    if (finding.severity != Severity::kSlower) return "another severity";
    // Where the setting refuses as well, that is what is told.
    return finding.what.find("seccomp") == std::string::npos &&
                   report.uring.disabled_setting <= 0
               ? "the filter is not named"
               : nullptr;
  }
  return "no finding";
}

TEST(ProbeMachineTest, AFilterThatRefusesTheRingIsNamed) {
  const int code = ExitCodeInChild([] {
    if (!RefuseRings()) std::_Exit(kCannotRestrict);
    const char* const wrong = WhatIsWrongWithoutRings();
    if (wrong != nullptr) std::fprintf(stderr, "%s\n", wrong);
    std::_Exit(wrong == nullptr ? 0 : 1);
  });
  if (code == kCannotRestrict) GTEST_SKIP() << "no seccomp filter here";
  EXPECT_EQ(code, 0);
}

// Registers as an ordinary user of a limit of 4 MiB.
TEST(ProbeUringTest, ALimitOfLockedMemoryShows) {
  const int code = ExitCodeInChild([] {
    if (!BecomeAUserWhoMayLock(4 << 20)) std::_Exit(kCannotRestrict);
    const UringReport report = ProbeUring();
    if (!report.available) std::_Exit(kCannotRestrict);
    // Other processes of the user share the limit.
    std::_Exit(report.registered_bytes <= 4 << 20 &&
                       report.register_error.rfind("ENOMEM", 0) == 0
                   ? 0
                   : 1);
  });
  if (code == kCannotRestrict) GTEST_SKIP() << "no ring, or no limit, here";
  EXPECT_EQ(code, 0);
}

TEST(ReportJsonTest, UnknownNumbersAndAbsentLimitsAreNull) {
  MachineReport report;
  report.memory.total_bytes = 5;
  report.paths.emplace_back().path = "not \xff utf-8";
  const auto json = nlohmann::json::parse(ToJson(report));
  EXPECT_EQ(json["memory"]["total_bytes"], 5);
  EXPECT_TRUE(json["memory"]["swap_bytes"].is_null());
  EXPECT_TRUE(json["container"]["memory_limit_bytes"].is_null());
  EXPECT_TRUE(json["engine"].is_null());
  EXPECT_EQ(json["usable"], true);
}

}  // namespace
}  // namespace terrace
