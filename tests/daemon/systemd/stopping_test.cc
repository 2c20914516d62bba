// A daemon that is told to end, to begin anew or to read its configuration.
#include <signal.h>

#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/daemon/server/connected_job.h"
#include "tests/daemon/systemd/systemd_test.h"
#include "tests/daemon/systemd/training_process.h"

namespace terrace {
namespace {

absl::StatusOr<std::unique_ptr<Runtime>> Connect(int64_t memory_bytes) {
  Options options;
  options.host_budget_bytes = memory_bytes;
  options.threads = 1;
  return Runtime::Connect(kControlSocket, options);
}

// A process that has a tensor pinned, and hears in time that the daemon ends.
void HearTheEnd(PlayedProcess::Stage& stage) {
  BecomeUser("alice");
  const auto job = Connect(1 << 20);
  ASSERT_TRUE(job.ok()) << job.status();
  const auto tensor = RegisterOf(**job, "x", 100 << 10);
  ASSERT_TRUE(tensor.ok() && FillOf(**job, *tensor, 3));
  const auto pin = (*job)->Acquire(*tensor, Access::kRead, Later());
  ASSERT_TRUE(pin.ok()) << pin.status();
  stage.Tell();
  stage.Await();
  EXPECT_TRUE(HasPattern(pin->data(), 3));
  const auto again = (*job)->Acquire(*tensor, Access::kRead, Later());
  if (absl::IsUnavailable(again.status())) stage.Tell();
}

// As it is configured, and for the next one in an emulated machine.
constexpr double kDrainSeconds = 5;
constexpr double kStartSeconds = 10;

class SystemdEnds : public SystemdTest {
 protected:
  // As `words` have systemctl do, within the deadline of its drain.
  static void Ends(const std::vector<std::string>& words,
                   bool job_is_stopped = false) {
    PlayedProcess job(HearTheEnd);
    ASSERT_TRUE(job.HasTold());
    if (job_is_stopped) job.Send(SIGSTOP);
    const absl::Time begin = absl::Now();
    EXPECT_EQ(Systemctl(words).exit_code, 0);
    const double seconds = SecondsSince(begin);
    Saw(absl::StrCat("systemctl ", words[0], " took ", seconds, " s, with a ",
                     job_is_stopped ? "stopped " : "", "job that had a pin"));
    EXPECT_LT(seconds, kDrainSeconds + kStartSeconds);
    EXPECT_EQ(Property("Result"), "success");
    EXPECT_EQ(Property("NFileDescriptorStore"), "0");
    job.Send(SIGCONT);
    job.GoOn();
    EXPECT_TRUE(job.HasTold()) << "it hears Unavailable";
  }
};

TEST_F(SystemdEnds, WithinItsDeadlineAndTheSocketStartsItAgain) {
  ASSERT_TRUE(ServedBy().ok());
  Ends({"stop", "terraced.service"});
  EXPECT_EQ(Property("ActiveState"), "inactive");
  EXPECT_TRUE(std::filesystem::is_empty(kServicePath));
  TrainingProcess next("alice");
  ASSERT_TRUE(next.Trains());
  EXPECT_TRUE(next.WentOn());
}

TEST_F(SystemdEnds, WhereAJobHasStopped) {
  ASSERT_TRUE(ServedBy().ok());
  Ends({"stop", "terraced.service"}, /*job_is_stopped=*/true);
  EXPECT_TRUE(std::filesystem::is_empty(kServicePath));
}

TEST_F(SystemdEnds, ItsJobsWhenItIsToBeginAnew) {
  const auto status = ServedBy();
  ASSERT_TRUE(status.ok());
  Ends({"restart", "terraced.service"});
  EXPECT_EQ(Property("ActiveState"), "active");
  EXPECT_NE(MainPid(), status->pid);
  TrainingProcess next("alice");
  ASSERT_TRUE(next.Trains());
  EXPECT_TRUE(next.WentOn());
}

TEST_F(SystemdEnds, WithItsSocketWhichLeavesNothing) {
  ASSERT_TRUE(ServedBy().ok());
  EXPECT_EQ(Systemctl({"stop", "terraced.socket"}).exit_code, 0);
  EXPECT_EQ(Property("ActiveState"), "inactive");
  EXPECT_FALSE(std::filesystem::exists(kControlSocket));
  EXPECT_FALSE(std::filesystem::exists(kMetricsSocket));
}

TEST_F(SystemdTest, AReloadReadsQuotasAgain) {
  ASSERT_TRUE(Connect(2 << 20).ok());
  const pid_t daemon = MainPid();
  Configure("quota.job.tiers = ['dram=1MiB']\n");
  EXPECT_TRUE(Connect(2 << 20).ok()) << "nothing is read by itself";
  EXPECT_EQ(Systemctl({"reload", "terraced.service"}).exit_code, 0);
  EXPECT_EQ(Property("ActiveState"), "active");
  EXPECT_EQ(MainPid(), daemon);
  EXPECT_TRUE(absl::IsResourceExhausted(Connect(2 << 20).status()));
}

}  // namespace
}  // namespace terrace
