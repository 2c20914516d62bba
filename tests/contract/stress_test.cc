// Several customers on threads of their own, at random, until the runtime
// closes. TERRACE_STRESS_SECONDS=N runs N seconds a world in place of one.
//
// Contents are checked against a plain array. Nothing but the runtime orders
// the accesses to it: a writer's pin is alone, so the thread sanitiser would
// see a pin that is not.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "absl/time/clock.h"
#include "tests/contract/contract_fixture.h"

namespace terrace {
namespace {

constexpr int kCustomers = 4;
constexpr int kTensors = 24;

absl::Duration StressTime() {
  const char* const seconds = std::getenv("TERRACE_STRESS_SECONDS");
  return absl::Seconds(seconds == nullptr ? 1 : std::atof(seconds));
}

class StressContract : public ContractTest {
 protected:
  void SetUp() override {
    ContractTest::SetUp();
    if (IsSkipped()) return;
    Make(20);
    for (int i = 0; i < kTensors; ++i) {
      tensors_.push_back(world().Register("tensor " + std::to_string(i),
                                          1 + i * 131 % (2 * kPage)));
    }
    auto queue = world().OpenQueue(2 * kPage, 2);
    for (int i = 0; i < kTensors; ++i) {
      world().Fill(*queue, tensors_[i], i);
      expected_[i] = static_cast<uint8_t>(i);
    }
  }

  // One customer, until it is told that the runtime was closed.
  void Serve(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::unique_ptr<RequestQueue> queue;
    std::vector<std::thread> helpers;
    int64_t step = 0;
    while (true) {
      if (queue == nullptr || random() % 100 == 0) {
        queue.reset();
        auto opened = runtime().OpenQueue(2 * kPage, 2, Soon());
        if (Ended(opened.status())) break;
        queue = *std::move(opened);
        if (Ended(queue->BeginStep(++step))) break;
      }
      if (random() % 20 == 0) {
        if (Ended(queue->CommitStep({.step = step}))) break;
        if (Ended(queue->BeginStep(++step))) break;
      }
      if (random() % 30 == 0) runtime().Prefetch(tensors_);
      if (random() % 30 == 0) {
        EXPECT_LE(stats().host.peak_bytes, stats().host.budget_bytes);
      }
      if (Ended(UseSome(*queue, random, helpers))) break;
    }
    for (std::thread& helper : helpers) helper.join();
  }

  // A group of one or two, taken, checked, perhaps changed, let go; now and
  // then on another thread.
  absl::Status UseSome(RequestQueue& queue, std::mt19937_64& random,
                       std::vector<std::thread>& helpers) {
    std::vector<int> chosen = {static_cast<int>(random() % kTensors)};
    const int other = static_cast<int>(random() % kTensors);
    if (other != chosen[0] && random() % 2 == 0) chosen.push_back(other);
    std::vector<Want> wants;
    for (const int t : chosen) {
      wants.push_back({tensors_[t], static_cast<Access>(random() % 3)});
    }
    absl::Status pushed = queue.Push(wants, 0, Soon());
    if (!pushed.ok()) return pushed;
    absl::StatusOr<Ready> ready = queue.Next(Soon());
    // Only its own pins are in the way: those that its helpers are to end.
    while (absl::IsFailedPrecondition(ready.status())) {
      std::this_thread::yield();
      ready = queue.Next(Soon());
    }
    if (!ready.ok()) return ready.status();
    if (!ready->pins.ok()) return ready->pins.status();
    for (size_t i = 0; i < chosen.size(); ++i) {
      const uint64_t draw = random();
      auto use = [this, draw, t = chosen[i], access = wants[i].access,
                  pin = std::move((*ready->pins)[i])]() mutable {
        Use(t, access, draw, std::move(pin));
      };
      if (draw % 16 == 0 && helpers.size() < 32) {
        helpers.emplace_back(std::move(use));
      } else {
        use();
      }
    }
    return absl::OkStatus();
  }

  void Use(int t, Access access, uint64_t draw, Pin pin) {
    ++uses_;
    if (access != Access::kOverwrite) {
      EXPECT_TRUE(HasPattern(pin.data(), expected_[t])) << "tensor " << t;
    }
    if (access == Access::kRead) return;
    if (draw % 3 == 0) return pin.ReleaseUnchanged();
    expected_[t] = static_cast<uint8_t>(draw >> 8);
    WritePattern(pin.data(), expected_[t]);
  }

  // Whether the runtime was closed; anything else but OK is a failure.
  static bool Ended(const absl::Status& status) {
    if (status.ok()) return false;
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
    return true;
  }

  std::vector<TensorId> tensors_;
  uint8_t expected_[kTensors] = {};
  std::atomic<int64_t> uses_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Worlds, StressContract,
                         testing::Values(TestWorld::kMemory, TestWorld::kUring,
                                         TestWorld::kThreads, TestWorld::kFar,
                                         TestWorld::kPmem, TestWorld::kFour,
                                         TestWorld::kHbm),
                         WorldParamName);

TEST_P(StressContract, RandomCustomersUntilTheClose) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::vector<std::thread> customers;
  for (int c = 0; c < kCustomers; ++c) {
    customers.emplace_back([this, seed, c] { Serve(seed + c); });
  }
  // On a busy machine the customers may not have run in that time.
  constexpr int64_t kLeastUses = 10;
  const absl::Time end = world().Now() + StressTime();
  const absl::Time limit = end + absl::Minutes(1);
  while ((world().Now() < end || uses_ <= kLeastUses) &&
         world().Now() < limit && !HasFailure()) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  const absl::Status status = runtime().Close(Soon());
  EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
  for (std::thread& customer : customers) customer.join();
  const absl::Status closed = runtime().Close(Soon());
  EXPECT_TRUE(closed.ok()) << closed;
  EXPECT_GT(uses_, kLeastUses);
  EXPECT_LE(stats().host.peak_bytes, stats().host.budget_bytes);
  EXPECT_TRUE(stats().first_error.ok()) << stats().first_error;
}

}  // namespace
}  // namespace terrace
