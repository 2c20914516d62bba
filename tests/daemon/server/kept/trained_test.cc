// Trainings during which the daemon is killed, again and again, at any moment:
// what comes of each is to the bit what plain vectors have that went through
// the same loop. TERRACE_KILLS says how many, of each training.
#include <atomic>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "tests/daemon/server/kept/revived_daemon.h"
#include "tests/daemon/server/kept/trainings.h"

namespace terrace {
namespace {

int Kills() {
  const char* const told = std::getenv("TERRACE_KILLS");
  return told == nullptr ? 30 : std::atoi(told);
}

class TrainedTest : public RevivedDaemonTest {
 protected:
  explicit TrainedTest(const std::string& text = "",
                       const std::string& memory = "")
      : RevivedDaemonTest(text, memory) {}

  // `await` is called while the training goes on under the last daemon.
  void KillAgainAndAgain(
      Training& training, absl::FunctionRef<void()> await = [] {}) {
    std::thread trains([&] { training.Run(); });
    std::mt19937 random(testing::UnitTest::GetInstance()->random_seed() + 1);
    for (int i = 0; i < Kills(); ++i) {
      EXPECT_TRUE(daemon_.Serves()) << "life " << i;
      const auto pause = std::uniform_int_distribution<int>(0, 40000)(random);
      absl::SleepFor(absl::Microseconds(pause));
      Revive();
    }
    EXPECT_TRUE(daemon_.Serves());
    absl::SleepFor(absl::Milliseconds(20));
    await();
    training.Stop();
    trains.join();
    training.Check();
    RecordProperty("steps", absl::StrCat(training.steps()));
  }
};

TEST_F(TrainedTest, AnOptimizersStateIsWhatItWouldHaveBeen) {
  SlotTraining training(*ConnectAs(daemon_, Training::kMemory));
  KillAgainAndAgain(training);
}

TEST_F(TrainedTest, AModelsIsToo) {
  ByteTraining training(*ConnectAs(daemon_, Training::kMemory));
  KillAgainAndAgain(training);
}

// Reads and writes are under way at nearly every moment.
class TrainedSlowlyTest : public TrainedTest {
 protected:
  TrainedSlowlyTest() : TrainedTest("pace = '20MB/s'\n") {}
};

TEST_F(TrainedSlowlyTest, AnOptimizersStateIsWhatItWouldHaveBeen) {
  SlotTraining training(*ConnectAs(daemon_, Training::kMemory));
  KillAgainAndAgain(training);
}

TEST_F(TrainedSlowlyTest, AModelsIsToo) {
  ByteTraining training(*ConnectAs(daemon_, Training::kMemory));
  KillAgainAndAgain(training);
}

// There is memory for a third more than the training has: others come that
// have it lend to them, and go.
class TrainedWhileItLendsTest : public TrainedTest {
 protected:
  TrainedWhileItLendsTest() : TrainedTest("", "1MiB") {}

  // Whether another one finds what it wrote. What is kept for one that was not
  // answered, or has ended meanwhile, keeps the next one out for its patience.
  absl::StatusOr<bool> ComeAndGo() {
    auto other = ConnectAs(daemon_, 400 << 10, "other", /*growth_bytes=*/0,
                           /*patience=*/absl::Seconds(5));
    if (!other.ok()) return other.status();
    const auto tensor = RegisterOf(**other, "a", 100 << 10);
    if (!tensor.ok()) return tensor.status();
    {
      auto pin = (*other)->Acquire(*tensor, Access::kOverwrite, Later());
      if (!pin.ok()) return pin.status();
      WritePattern(pin->data(), 5);
    }
    const auto pin = (*other)->Acquire(*tensor, Access::kRead, Later());
    if (!pin.ok()) return pin.status();
    return HasPattern(pin->data(), 5);
  }

  void KillWhileOthersComeAndGo(Training& training) {
    std::atomic<bool> ends = false;
    absl::Notification has_come;
    absl::Status refused;  // the last time
    std::thread others([&] {
      while (!ends) {
        // The daemon may be killed before it is kept, and the one before that
        // ended meanwhile is kept for a while.
        const absl::StatusOr<bool> has_it = ComeAndGo();
        if (!has_it.ok()) {
          refused = has_it.status();
          EXPECT_TRUE(absl::IsUnavailable(refused) ||
                      absl::IsNotFound(refused) ||
                      absl::IsResourceExhausted(refused))
              << refused;
          continue;
        }
        EXPECT_TRUE(*has_it);
        if (!has_come.HasBeenNotified()) has_come.Notify();
      }
    });
    // Where the machine is busy none may come between two kills.
    KillAgainAndAgain(training, [&] {
      has_come.WaitForNotificationWithTimeout(Later() - absl::Now());
    });
    ends = true;
    others.join();
    EXPECT_TRUE(has_come.HasBeenNotified()) << refused;
  }
};

TEST_F(TrainedWhileItLendsTest, AnOptimizersStateIsWhatItWouldHaveBeen) {
  SlotTraining training(*ConnectAs(daemon_, Training::kMemory));
  KillWhileOthersComeAndGo(training);
}

TEST_F(TrainedWhileItLendsTest, AModelsIsToo) {
  ByteTraining training(*ConnectAs(daemon_, Training::kMemory));
  KillWhileOthersComeAndGo(training);
}

TEST_F(TrainedTest, TwoAtOnceAreToo) {
  SlotTraining one(*ConnectAs(daemon_, Training::kMemory));
  ByteTraining other(*ConnectAs(daemon_, Training::kMemory));
  std::thread trains([&] { other.Run(); });
  KillAgainAndAgain(one);
  other.Stop();
  trains.join();
  other.Check();
}

}  // namespace
}  // namespace terrace
