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

using Readers = std::vector<std::unique_ptr<Reader>>;

int64_t BytesOf(const Readers& readers) {
  int64_t all = 0;
  for (const auto& each : readers) all += each->bytes();
  return all;
}

// What the first has of so many bytes that all of them read next, however long
// that takes on a machine that does other things too.
double ShareOfFirst(const Readers& readers, int64_t bytes) {
  const int64_t first = readers[0]->bytes();
  const int64_t all = BytesOf(readers);
  const absl::Time end = absl::Now() + absl::Minutes(1);
  while (BytesOf(readers) < all + bytes) {
    EXPECT_LT(absl::Now(), end);
    if (absl::Now() >= end) return 0;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return static_cast<double>(readers[0]->bytes() - first) /
         static_cast<double>(BytesOf(readers) - all);
}

// Twice, with other weights after the second file was read.
TEST(LinksTest, JobsShareADiskByTheirWeights) {
  const std::string jobs = absl::StrCat("[users.", getuid(), ".jobs.");
  RunningDaemon daemon(absl::StrCat(kPaceText, jobs, "one]\nweight = 4\n"));
  ASSERT_TRUE(daemon.Serves());
  Readers readers;
  readers.push_back(std::make_unique<Reader>(daemon, "one"));
  readers.push_back(std::make_unique<Reader>(daemon, "two"));
  const absl::Time start = absl::Now();
  const int64_t before = BytesOf(readers);
  ShareOfFirst(readers, 10'000'000);
  const double heavy = ShareOfFirst(readers, 40'000'000);
  EXPECT_GT(heavy, 0.65);
  EXPECT_LT(heavy, 0.9);
  // Never more than the pace, and what was under way when it began.
  EXPECT_LT(static_cast<double>(BytesOf(readers) - before),
            kPace * absl::ToDoubleSeconds(absl::Now() - start) + 4e6);
  daemon.WriteConfig(absl::StrCat(kPaceText, jobs, "two]\nweight = 4\n"));
  daemon.Kill(SIGHUP);
  ASSERT_TRUE(daemon.WaitUntilTold("RELOADING=1"));
  ShareOfFirst(readers, 20'000'000);
  const double light = ShareOfFirst(readers, 40'000'000);
  EXPECT_GT(light, 0.1);
  EXPECT_LT(light, 0.35);
}

// While its pieces are under way, and its turn has come: there is a moment soon
// in which the other has nearly all.
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
    Readers readers;
    readers.push_back(std::make_unique<Reader>(daemon, "one"));
    absl::SleepFor(absl::Milliseconds(300));
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    double rate = 0;
    for (int i = 0; i < 30 && rate < 0.8 * kPace; ++i) {
      const absl::Time start = absl::Now();
      const int64_t before = readers[0]->bytes();
      absl::SleepFor(absl::Seconds(1));
      rate = static_cast<double>(readers[0]->bytes() - before) /
             absl::ToDoubleSeconds(absl::Now() - start);
    }
    EXPECT_GE(rate, 0.8 * kPace) << round;
  }
}

}  // namespace
}  // namespace terrace
