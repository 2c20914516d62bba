// That the daemon does its work, and has no more than that takes.
#include <pwd.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "tests/daemon/server/http_client.h"
#include "tests/daemon/systemd/systemd_test.h"
#include "tests/daemon/systemd/training_process.h"

namespace terrace {
namespace {

// How a process has the file system that has the path: "rw,relatime".
std::string MountedAs(pid_t process, const std::string& path,
                      const std::string& mounts) {
  std::string options;
  for (const absl::string_view line : absl::StrSplit(mounts, '\n')) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ');
    if (fields.size() > 5 && fields[4] == path) options = fields[5];
  }
  EXPECT_NE(options, "") << path << " of " << process;
  return options;
}

int DescriptorsOf(pid_t process, const std::string& what) {
  int count = 0;
  for (const auto& each : std::filesystem::directory_iterator(
           absl::StrCat("/proc/", process, "/fd"))) {
    std::error_code gone;
    count += std::filesystem::read_symlink(each, gone).string() == what;
  }
  return count;
}

TEST_F(SystemdTest, ItHasTheRightsOfItsUnitAlone) {
  ASSERT_TRUE(ServedBy().ok());
  const pid_t daemon = MainPid();
  EXPECT_EQ(StatusLine(daemon, "Uid"), "101\t101\t101\t101");
  EXPECT_EQ(StatusLine(daemon, "NoNewPrivs"), "1");
  EXPECT_EQ(StatusLine(daemon, "Seccomp"), "2");
  // CAP_IPC_LOCK is 14, CAP_SYS_NICE 23.
  EXPECT_EQ(StatusLine(daemon, "CapEff"), "0000000000804000");
  EXPECT_EQ(StatusLine(daemon, "CapBnd"), "0000000000804000");
  const std::string mounts = Read(absl::StrCat("/proc/", daemon, "/mountinfo"));
  EXPECT_THAT(MountedAs(daemon, "/", mounts), testing::StartsWith("ro"));
  for (const char* own : {"/var/lib/terrace", "/run/terrace"}) {
    EXPECT_THAT(MountedAs(daemon, own, mounts), testing::StartsWith("rw"));
  }
  EXPECT_THAT(
      Read(absl::StrCat("/proc/", daemon, "/limits")),
      testing::ContainsRegex("Max locked memory +unlimited +unlimited"));
}

TEST_F(SystemdTest, ItReadsAndWritesByUringAndLocksItsMemory) {
  TrainingProcess job("alice");
  ASSERT_TRUE(job.Trains());
  const pid_t daemon = MainPid();
  const int rings = DescriptorsOf(daemon, "anon_inode:[io_uring]");
  EXPECT_GT(rings, 0) << "the filter of system calls lets it";
  Saw(absl::StrCat("io_uring: ", rings, " rings under the unit's filter, ",
                   StatusLine(daemon, "VmPin"), " pinned"));
  EXPECT_TRUE(job.WentOn());
}

// As the unit says at its top.
class SystemdDropIn : public SystemdTest {
 protected:
  void SetUp() override {
    SystemdTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    std::filesystem::create_directories(kPath);
    const passwd* const user = getpwnam("terrace");
    ASSERT_EQ(chown(kPath, user->pw_uid, user->pw_gid), 0);
    WriteConfig(absl::StrCat("tiers = ['dram=16MiB', 'nvme:", kPath,
                             "=32MiB']\nmetrics = '127.0.0.1:", kPort, "'\n"));
  }
  void TearDown() override {
    std::filesystem::remove_all(kDropIns);
    SystemdTest::TearDown();
    if (!IsSkipped()) Systemctl({"daemon-reload"});
  }

  static bool Starts(const std::string& drop_in) {
    std::filesystem::create_directories(kDropIns);
    std::ofstream(absl::StrCat(kDropIns, "/own.conf")) << "[Service]\n"
                                                       << drop_in;
    EXPECT_EQ(Systemctl({"daemon-reload"}).exit_code, 0);
    const bool starts = Systemctl({"start", "terraced.service"}).exit_code == 0;
    if (!starts) Systemctl({"stop", "terraced.service"});
    return starts;
  }

  static constexpr char kPath[] = "/srv/terrace";
  static constexpr char kDropIns[] = "/etc/systemd/system/terraced.service.d";
  static constexpr uint16_t kPort = 9464;
};

TEST_F(SystemdDropIn, GivesItAPathAndAPort) {
  const std::string path = absl::StrCat("ReadWritePaths=", kPath, "\n");
  const std::string port =
      "RestrictAddressFamilies=AF_INET AF_INET6\nIPAddressAllow=localhost\n";
  EXPECT_FALSE(Starts(path));
  EXPECT_FALSE(Starts(port));
  ASSERT_TRUE(Starts(path + port));
  const HttpAnswer answer =
      Exchange(ConnectToPort(kPort),
               absl::StrCat("GET /readyz HTTP/1.1\r\nHost: 127.0.0.1:", kPort,
                            "\r\nConnection: close\r\n\r\n"));
  EXPECT_EQ(answer.status, 200) << answer.head;
  TrainingProcess job("alice");
  ASSERT_TRUE(job.Trains());
  EXPECT_TRUE(job.WentOn());
}

TEST_F(SystemdTest, ItsExposureIsAsDocumented) {
  ASSERT_TRUE(ServedBy().ok());
  const ChildResult result =
      ChildProcess({"/usr/bin/systemd-analyze", "--no-pager", "--threshold=20",
                    "security", "terraced.service"})
          .Wait();
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  const size_t level = result.output.find("Overall exposure level");
  ASSERT_NE(level, std::string::npos) << result.output;
  const std::string line = result.output.substr(level);
  Saw(line.substr(0, line.find('\n')));
  EXPECT_THAT(line, testing::HasSubstr(": 1.6 "));
}

}  // namespace
}  // namespace terrace
