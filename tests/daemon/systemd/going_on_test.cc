// A daemon that is killed or has stopped, and a job that goes on with the next
// one.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/daemon/server/http_client.h"
#include "tests/daemon/systemd/systemd_test.h"
#include "tests/daemon/systemd/training_process.h"

namespace terrace {
namespace {

class SystemdGoesOn : public SystemdTest {
 protected:
  static int Number(const std::string& property) {
    int number = -1;
    EXPECT_TRUE(absl::SimpleAtoi(Property(property), &number)) << property;
    return number;
  }
  // The next process of the service after that one, which may not serve yet; 0:
  // none has come within a minute.
  static pid_t ProcessAfter(pid_t before) {
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    while (absl::Now() < deadline) {
      // Sooner than systemctl has begun.
      std::ifstream group(
          "/sys/fs/cgroup/system.slice/terraced.service/cgroup.procs");
      pid_t now = 0;
      if (group >> now && now != before) return now;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return 0;
  }
};

TEST_F(SystemdGoesOn, WhenItIsKilled) {
  TrainingProcess job("alice");
  ASSERT_TRUE(job.Trains());
  // Also where systemd has read its units anew, or is a new program itself.
  for (const std::string word : {"", "daemon-reload", "daemon-reexec"}) {
    if (!word.empty()) {
      ASSERT_EQ(Systemctl({word}).exit_code, 0) << word;
    }
    const pid_t before = MainPid();
    const int restarts = Number("NRestarts");
    // Its memory, its image and the lock of its file on the disk.
    EXPECT_EQ(Number("NFileDescriptorStore"), 3);
    const absl::Time begin = absl::Now();
    // An operator has it begin anew so, without an end of its jobs.
    ASSERT_EQ(
        Systemctl({"kill", "--signal=KILL", "terraced.service"}).exit_code, 0);
    const auto status = ServedBy(before);
    ASSERT_TRUE(status.ok()) << status.status();
    Saw(absl::StrCat("served again ", SecondsSince(begin),
                     " s after SIGKILL, with a job",
                     word.empty() ? "" : " and after " + word));
    EXPECT_EQ(Number("NRestarts"), restarts + 1);
    EXPECT_EQ(Get(kMetricsSocket, "/readyz").status, 200);
  }
  EXPECT_TRUE(job.WentOn());
}

TEST_F(SystemdGoesOn, WhenItIsKilledAgainAndAgainBeforeItServes) {
  TrainingProcess job("alice");
  ASSERT_TRUE(job.Trains());
  pid_t daemon = MainPid();
  const absl::Time begin = absl::Now();
  for (int life = 0; life < 8; ++life) {
    ASSERT_EQ(kill(daemon, SIGKILL), 0) << "life " << life;
    daemon = ProcessAfter(daemon);
    ASSERT_NE(daemon, 0) << "it was given up: " << Property("Result");
  }
  Saw(absl::StrCat("eight kills within ", SecondsSince(begin),
                   " s are no reason to give it up"));
  EXPECT_TRUE(ServedBy().ok());
  EXPECT_TRUE(job.WentOn());
}

TEST_F(SystemdGoesOn, WhenItHasStoppedAndItsWatchdogKillsIt) {
  // Where a core would go if one were written.
  const std::string core = absl::StrCat(kServicePath, "/core");
  std::ofstream("/proc/sys/kernel/core_pattern") << core;
  TrainingProcess job("alice");
  ASSERT_TRUE(job.Trains());
  const pid_t before = MainPid();
  const absl::Time begin = absl::Now();
  ASSERT_EQ(kill(before, SIGSTOP), 0);
  const pid_t next = ProcessAfter(before);
  const double killed = SecondsSince(begin);
  const auto status = ServedBy(before);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->pid, next);
  Saw(absl::StrCat("stopped by SIGSTOP: another was started after ", killed,
                   " s, and served after ", SecondsSince(begin), " s"));
  EXPECT_GE(killed, 6) << "it was fed until then";
  EXPECT_LE(killed, 15) << "a job gives it up then";
  EXPECT_FALSE(std::filesystem::exists(core)) << "it has the bytes of all jobs";
  EXPECT_EQ(Property("LimitCORE"), "0") << "a handler of cores would write one";
  EXPECT_TRUE(job.WentOn());
  std::filesystem::remove(core);
}

}  // namespace
}  // namespace terrace
