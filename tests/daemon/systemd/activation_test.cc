// What starts the daemon, and when it counts as started.
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/daemon/server/connected_job.h"
#include "tests/daemon/server/http_client.h"
#include "tests/daemon/systemd/systemd_test.h"
#include "tests/daemon/systemd/training_process.h"

namespace terrace {
namespace {

struct stat StatOf(const std::string& path) {
  struct stat file = {};
  EXPECT_EQ(stat(path.c_str(), &file), 0) << path;
  return file;
}

TEST_F(SystemdTest, TheFirstConnectionStartsIt) {
  const struct stat socket = StatOf(kControlSocket);
  const passwd* const user = getpwnam("terrace");
  const group* const members = getgrnam("terrace");
  ASSERT_TRUE(user != nullptr && members != nullptr);
  EXPECT_EQ(socket.st_mode & 07777, 0660u);
  EXPECT_EQ(socket.st_uid, user->pw_uid);
  EXPECT_EQ(socket.st_gid, members->gr_gid);
  EXPECT_EQ(MainPid(), 0);

  const absl::Time begin = absl::Now();
  const auto status = ServedBy();
  ASSERT_TRUE(status.ok()) << status.status();
  Saw(absl::StrCat("answered ", SecondsSince(begin),
                   " s after the first connection, which started it"));
  EXPECT_EQ(Property("ActiveState"), "active");
  EXPECT_EQ(Property("StatusText"),
            absl::StrCat("serves dram=16MiB, nvme:", kServicePath, "=32MiB"));
  EXPECT_EQ(status->pid, MainPid());
  EXPECT_EQ(StatOf(kServicePath).st_mode & 07777, 0700u);
  EXPECT_EQ(StatOf(kServicePath).st_uid, user->pw_uid);
}

TEST_F(SystemdTest, AnOrdinaryUsersJobHasItsBytesBack) {
  TrainingProcess job("alice");
  ASSERT_TRUE(job.Trains());
  const ChildResult listed =
      ChildProcess({"/usr/local/bin/terrace", "ls"}).Wait();
  EXPECT_THAT(listed.output, testing::HasSubstr("night")) << listed.errors;
  EXPECT_TRUE(job.WentOn());
}

TEST_F(SystemdTest, WhoIsNotInTheGroupHasNothing) {
  ASSERT_TRUE(ServedBy().ok());
  PlayedProcess other([](PlayedProcess::Stage& stage) {
    BecomeUser("mallory");
    Options options;
    options.host_budget_bytes = 1 << 20;
    const auto job = Runtime::Connect(kControlSocket, options);
    if (absl::IsPermissionDenied(job.status()) &&
        ConnectToPath(kMetricsSocket) < 0 && errno == EACCES) {
      stage.Tell();
    }
  });
  EXPECT_TRUE(other.HasTold());
}

TEST_F(SystemdTest, ItIsActiveOnlyOnceItIsReady) {
  ASSERT_EQ(Systemctl({"start", "--no-block", "terraced.service"}).exit_code,
            0);
  bool began = false;
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  std::string state;
  while (absl::Now() < deadline && state != "active") {
    state = Property("ActiveState");
    began |= state == "activating";
  }
  EXPECT_EQ(state, "active");
  EXPECT_TRUE(began);
  EXPECT_THAT(Property("StatusText"), testing::StartsWith("serves "));
}

TEST_F(SystemdTest, AWrongConfigurationIsNoService) {
  Configure("drian_seconds = 3\n");
  EXPECT_NE(Systemctl({"start", "terraced.service"}).exit_code, 0);
  EXPECT_NE(Property("ActiveState"), "active");
  const ChildResult log =
      ChildProcess({"/usr/bin/journalctl", "-u", "terraced.service", "-n", "20",
                    "--no-pager"})
          .Wait();
  EXPECT_THAT(log.output, testing::HasSubstr("terraced.toml:5:1: "));
  // Who connected meanwhile, and who comes, is served once it is right.
  Configure();
  EXPECT_TRUE(ServedBy().ok());
}

TEST_F(SystemdTest, ItTellsMetricsAtItsSocket) {
  ASSERT_TRUE(ServedBy().ok());
  EXPECT_EQ(StatOf(kMetricsSocket).st_mode & 07777, 0660u);
  EXPECT_EQ(Get(kMetricsSocket, "/readyz").status, 200);
  const HttpAnswer metrics = Get(kMetricsSocket, "/metrics");
  EXPECT_EQ(metrics.status, 200);
  EXPECT_FALSE(SamplesOf(metrics.body).empty());
}

}  // namespace
}  // namespace terrace
