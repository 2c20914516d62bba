// Jobs share the link to a daemon's disk: what each has read of it, at a pace
// that the daemon keeps them to together.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/daemon/server/connected_job.h"

namespace terrace {
namespace {

constexpr int64_t kBytes = 128 << 10;
constexpr int kSlots = 8;
constexpr int kTensors = 16;
constexpr double kPace = 20e6;
constexpr char kPaceText[] = "pace = '20MB/s'\n";

// Reads its tensors again and again, as many at a time as it has room for.
class Reader {
 public:
  Reader(const RunningDaemon& daemon, const std::string& job) {
    auto runtime = ConnectAs(daemon, WindowBytes(kBytes, kSlots), job);
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
    for (int i = 0; i < kTensors; ++i) {
      tensors_.push_back(*RegisterOf(*runtime_, absl::StrCat("t", i), kBytes));
      EXPECT_TRUE(FillOf(*runtime_, tensors_.back(), i));
    }
    thread_ = std::thread([this] { Run(); });
  }
  ~Reader() {
    ends_ = true;
    thread_.join();
  }

  int64_t bytes() const { return runtime_->GetStats().bytes_read(); }

 private:
  void Run() {
    auto queue = runtime_->OpenQueue(kBytes, kSlots, Later());
    ASSERT_TRUE(queue.ok()) << queue.status();
    for (int i = 0; !ends_; ++i) {
      const TensorId tensor = tensors_[static_cast<size_t>(i % kTensors)];
      ASSERT_TRUE((*queue)->Push({{tensor, Access::kRead}}, 0, Later()).ok());
      if (i + 1 < kSlots) continue;
      const auto ready = (*queue)->Next(Later());
      ASSERT_TRUE(ready.ok() && ready->pins.ok());
    }
  }

  std::unique_ptr<Runtime> runtime_;
  std::vector<TensorId> tensors_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

// Bytes a second, of each, meanwhile.
std::vector<double> RatesOf(const std::vector<std::unique_ptr<Reader>>& readers,
                            absl::Duration time) {
  std::vector<int64_t> before;
  const absl::Time start = absl::Now();
  for (const auto& each : readers) before.push_back(each->bytes());
  absl::SleepFor(time);
  std::vector<double> rates;
  for (size_t i = 0; i < readers.size(); ++i) {
    rates.push_back(static_cast<double>(readers[i]->bytes() - before[i]) /
                    absl::ToDoubleSeconds(absl::Now() - start));
  }
  return rates;
}

// Twice, with other weights after the second file was read.
TEST(LinksTest, JobsShareADiskByTheirWeights) {
  const std::string jobs = absl::StrCat("[users.", getuid(), ".jobs.");
  RunningDaemon daemon(absl::StrCat(kPaceText, jobs, "one]\nweight = 4\n"));
  ASSERT_TRUE(daemon.Serves());
  std::vector<std::unique_ptr<Reader>> readers;
  readers.push_back(std::make_unique<Reader>(daemon, "one"));
  readers.push_back(std::make_unique<Reader>(daemon, "two"));
  absl::SleepFor(absl::Milliseconds(500));
  const std::vector<double> first = RatesOf(readers, absl::Seconds(2));
  EXPECT_GT(first[0], 2.5 * first[1]);
  EXPECT_LT(first[0], 6 * first[1]);
  EXPECT_GT(first[0] + first[1], 0.7 * kPace);
  EXPECT_LT(first[0] + first[1], 1.2 * kPace);
  daemon.WriteConfig(absl::StrCat(kPaceText, jobs, "two]\nweight = 4\n"));
  daemon.Kill(SIGHUP);
  ASSERT_TRUE(daemon.WaitUntilTold("RELOADING=1"));
  absl::SleepFor(absl::Seconds(1));
  const std::vector<double> second = RatesOf(readers, absl::Seconds(2));
  EXPECT_GT(second[1], 2.5 * second[0]);
  EXPECT_LT(second[1], 6 * second[0]);
}

// While its pieces are under way, and its turn has come.
TEST(LinksTest, AJobThatIsKilledLeavesTheLinkToTheOthers) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a child that has threads of its own";
#endif
  RunningDaemon daemon(kPaceText);
  ASSERT_TRUE(daemon.Serves());
  for (int round = 0; round < 3; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      const Reader flood(daemon, "flood");
      while (true) pause();
    }
    std::vector<std::unique_ptr<Reader>> readers;
    readers.push_back(std::make_unique<Reader>(daemon, "one"));
    absl::SleepFor(absl::Milliseconds(300));
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    absl::SleepFor(absl::Milliseconds(300));
    EXPECT_GT(RatesOf(readers, absl::Seconds(1))[0], 0.7 * kPace) << round;
  }
}

}  // namespace
}  // namespace terrace
