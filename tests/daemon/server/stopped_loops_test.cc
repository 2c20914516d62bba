// A process of a job one of whose loops in the daemon has stopped: which one it
// is, and that others go on, is told to who waits.
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/daemon/server/connected_job.h"
#include "tests/daemon/server/stopped_thread.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// A daemon with the jobs "night", whose loops stop, and "other".
class StoppedLoopsTest : public testing::Test {
 protected:
  static constexpr int64_t kBytes = 1 << 20;
  static constexpr int64_t kPayload = 64 << 10;
  // Of the process, for a disk; the other loops have a quarter of it.
  static constexpr absl::Duration kPatience = absl::Seconds(8);
  // The silence of a daemon as a whole would be told later.
  static constexpr absl::Duration kSoonEnough = absl::Seconds(7);

  void SetUp() override {
    ASSERT_TRUE(daemon_.Serves());
    job_ = Connect("night", kPatience);
    other_ = Connect("other", Options().io_timeout);
    if (job_ == nullptr || other_ == nullptr) return;
    ASSERT_TRUE(HasThreads("terrace-session", 2));
    // One each of the daemon's own.
    ASSERT_TRUE(HasThreads("terrace-mover", 3));
    ASSERT_TRUE(HasThreads("terrace-files", 3));
    kept_ = *RegisterOf(*other_, "kept", kPayload);
    ASSERT_TRUE(FillOf(*other_, kept_, 7));
  }
  std::unique_ptr<Runtime> Connect(const std::string& job,
                                   absl::Duration patience) const {
    auto connected = ConnectAs(daemon_, kBytes, job, 0, patience);
    EXPECT_TRUE(connected.ok()) << connected.status();
    return connected.ok() ? *std::move(connected) : nullptr;
  }
  // A thread names itself, and may be late.
  bool HasThreads(const std::string& name, size_t count) {
    return daemon_.WaitUntil(
        [&] { return ThreadsNamed(daemon_.pid(), name).size() == count; });
  }
  // Of "night", which came first of the two.
  pid_t Thread(const std::string& name, size_t which) const {
    const std::vector<pid_t> threads = ThreadsNamed(daemon_.pid(), name);
    return threads.size() > which ? threads[which] : 0;
  }
  // As many tensors, one after the other, as its memory has no room for.
  absl::Status Fill(Runtime& job) const {
    for (int i = 0; i < 40; ++i) {
      const auto tensor = RegisterOf(job, absl::StrCat("t", i), kPayload);
      if (!tensor.ok()) return tensor.status();
      const auto pin = job.Acquire(*tensor, Access::kOverwrite, Later());
      if (!pin.ok()) return pin.status();
      WritePattern(pin->data(), 1);
    }
    return absl::OkStatus();
  }
  void ExpectTold(const absl::Status& told, const std::string& loop) const {
    EXPECT_TRUE(absl::IsUnavailable(told)) << told;
    EXPECT_THAT(
        std::string(told.message()),
        HasSubstr(absl::StrCat("it is stopped: the loop '", loop,
                               "' for this process, of the job 'night', has "
                               "not turned for ")));
  }
  // Whoever is not of it goes on as before.
  void ExpectOthersServed() {
    EXPECT_TRUE(Holds(*other_, kept_, 7));
    EXPECT_TRUE(FillOf(*other_, kept_, 7));
  }
  void ExpectServedAgain() {
    job_.reset();
    EXPECT_TRUE(
        daemon_.WaitUntil([&] { return UsedMemory(daemon_) == kBytes; }));
    const auto anew = Connect("night", kPatience);
    ASSERT_NE(anew, nullptr);
    EXPECT_TRUE(Fill(*anew).ok());
  }

  RunningDaemon daemon_{""};
  std::unique_ptr<Runtime> job_;
  std::unique_ptr<Runtime> other_;
  TensorId kept_;
};

TEST_F(StoppedLoopsTest, WhoWaitsIsToldThatItsMoverHasStopped) {
  {
    // The first is the daemon's own.
    const StoppedThread stopped(Thread("terrace-mover", 1));
    if (!stopped.ok()) GTEST_SKIP() << "a child may not be traced here";
    const absl::Time begin = absl::Now();
    ExpectTold(RegisterOf(*job_, "a", 4096).status(), "mover");
    EXPECT_LT(absl::Now() - begin, kSoonEnough);
    ExpectOthersServed();
  }
  ExpectServedAgain();
}

TEST_F(StoppedLoopsTest, WhoWaitsIsToldThatItsSessionHasStopped) {
  {
    const StoppedThread stopped(Thread("terrace-session", 0));
    if (!stopped.ok()) GTEST_SKIP() << "a child may not be traced here";
    const absl::Time begin = absl::Now();
    ExpectTold(RegisterOf(*job_, "a", 4096).status(), "session");
    EXPECT_LT(absl::Now() - begin, kSoonEnough);
    ExpectOthersServed();
  }
  ExpectServedAgain();
}

// Its mover turns, and says so.
TEST_F(StoppedLoopsTest, WhoWaitsForADiskIsToldThatItsThreadHasStopped) {
  {
    const StoppedThread stopped(Thread("terrace-files", 1));
    if (!stopped.ok()) GTEST_SKIP() << "a child may not be traced here";
    ExpectTold(Fill(*job_), "files 0");
    ExpectOthersServed();
  }
  ExpectServedAgain();
}

TEST_F(StoppedLoopsTest, WhereNobodyComputesChecksumsWhoWaitsIsTold) {
  ASSERT_TRUE(FillOf(*job_, *RegisterOf(*job_, "first", kPayload), 1));
  {
    std::vector<std::unique_ptr<StoppedThread>> stopped;
    for (const pid_t each : ThreadsNamed(daemon_.pid(), "terrace-exec")) {
      stopped.push_back(std::make_unique<StoppedThread>(each));
      if (!stopped.back()->ok()) {
        GTEST_SKIP() << "a child may not be traced here";
      }
    }
    ASSERT_FALSE(stopped.empty());
    const absl::Time begin = absl::Now();
    ExpectTold(Fill(*job_), "checksums");
    EXPECT_LT(absl::Now() - begin, kSoonEnough);
    EXPECT_TRUE(Holds(*other_, kept_, 7));
  }
  ExpectServedAgain();
}

// One that goes on in time has harmed nobody.
TEST_F(StoppedLoopsTest, WhoWaitsForOneThatGoesOnHasItsAnswer) {
  auto job = Connect("late", absl::Seconds(60));
  ASSERT_NE(job, nullptr);
  ASSERT_TRUE(HasThreads("terrace-mover", 4));
  absl::Status told = absl::UnknownError("no answer");
  std::thread waits;
  {
    const StoppedThread stopped(Thread("terrace-mover", 3));
    if (!stopped.ok()) GTEST_SKIP() << "a child may not be traced here";
    waits = std::thread([&] { told = RegisterOf(*job, "a", 4096).status(); });
    absl::SleepFor(absl::Seconds(4));
  }
  waits.join();
  EXPECT_TRUE(told.ok()) << told;
}

TEST_F(StoppedLoopsTest, WhoWaitsForNothingNoticesNothing) {
  {
    const StoppedThread stopped(Thread("terrace-mover", 1));
    if (!stopped.ok()) GTEST_SKIP() << "a child may not be traced here";
    absl::SleepFor(kPatience / 2);
  }
  EXPECT_TRUE(FillOf(*job_, *RegisterOf(*job_, "a", 4096), 1));
}

}  // namespace
}  // namespace terrace
