#include "tests/daemon/systemd/training_process.h"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "absl/time/clock.h"
#include "base/check.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/kept/trainings.h"
#include "tests/daemon/systemd/systemd_test.h"

namespace terrace {
namespace {

// False: the training has ended, as a step has failed.
bool Reaches(const Training& training, int64_t steps) {
  const absl::Time deadline = absl::Now() + absl::Minutes(2);
  while (training.steps() < steps) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

void Train(const std::string& user, PlayedProcess::Stage& stage) {
  BecomeUser(user);
  Options options;
  options.host_budget_bytes = Training::kMemory;
  options.job = "night";
  options.threads = 1;
  auto job = Runtime::Connect(kControlSocket, options);
  ASSERT_TRUE(job.ok()) << job.status();
  SlotTraining training(*std::move(job));
  std::thread trains([&] { training.Run(); });
  EXPECT_TRUE(Reaches(training, 1));
  if (!testing::Test::HasFailure()) stage.Tell();
  stage.Await();
  EXPECT_TRUE(Reaches(training, training.steps() + 2));
  training.Stop();
  trains.join();
  training.Check();
  if (!testing::Test::HasFailure()) stage.Tell();
}

}  // namespace

void BecomeUser(const std::string& name) {
  const passwd* const user = getpwnam(name.c_str());
  TERRACE_CHECK(user != nullptr);
  TERRACE_CHECK(initgroups(name.c_str(), user->pw_gid) == 0);
  TERRACE_CHECK(setgid(user->pw_gid) == 0);
  TERRACE_CHECK(setuid(user->pw_uid) == 0);
}

TrainingProcess::TrainingProcess(const std::string& user)
    : process_([&user](PlayedProcess::Stage& stage) {
        Train(user, stage);
        std::fflush(stdout);
      }) {}

bool TrainingProcess::WentOn() {
  process_.GoOn();
  return process_.HasTold();
}

}  // namespace terrace
