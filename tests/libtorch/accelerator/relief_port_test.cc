#include "libtorch/accelerator/relief_port.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <stdexcept>
#include <thread>

#include "gtest/gtest.h"

namespace terrace {
namespace {

struct Source final : ReliefSource {
  bool IsCapturing() override { return is_capturing; }
  bool IsUnderBudget() override { return is_under_budget; }
  int64_t DropClean() override {
    ++calls;
    return drop == nullptr ? 8 : drop();
  }

  bool is_capturing = false;
  bool is_under_budget = false;
  std::atomic<int> calls = 0;
  std::function<int64_t()> drop;
};

TEST(ReliefPort, AsksTheSourceAndTellsWhetherItFreed) {
  ReliefPort port;
  Source source;
  ASSERT_TRUE(port.Attach(&source));
  EXPECT_TRUE(port.Relieve());
  source.drop = [] { return 0; };
  EXPECT_FALSE(port.Relieve());
  EXPECT_EQ(source.calls, 2);
  port.Detach();
}

TEST(ReliefPort, WithoutASourceThereIsNothing) {
  ReliefPort port;
  EXPECT_FALSE(port.Relieve());
}

TEST(ReliefPort, HasOneSourceAtATime) {
  ReliefPort port;
  Source source;
  Source other;
  ASSERT_TRUE(port.Attach(&source));
  EXPECT_FALSE(port.Attach(&other));
  EXPECT_TRUE(port.Relieve());
  EXPECT_EQ(source.calls, 1);
  port.Detach();
  EXPECT_TRUE(port.Attach(&other));
  EXPECT_TRUE(port.Relieve());
  EXPECT_EQ(other.calls, 1);
  port.Detach();
}

TEST(ReliefPort, NothingIsDroppedDuringACapture) {
  ReliefPort port;
  Source source;
  source.is_capturing = true;
  ASSERT_TRUE(port.Attach(&source));
  EXPECT_FALSE(port.Relieve());
  EXPECT_EQ(source.calls, 0);
  port.Detach();
}

TEST(ReliefPort, NothingIsDroppedUnderBudget) {
  ReliefPort port;
  Source source;
  source.is_under_budget = true;
  ASSERT_TRUE(port.Attach(&source));
  EXPECT_FALSE(port.Relieve());
  EXPECT_EQ(source.calls, 0);
  port.Detach();
}

// Where what is dropped has memory allocated, which misses the cache too.
TEST(ReliefPort, IsNotEnteredAgainOnItsOwnThread) {
  ReliefPort port;
  Source source;
  bool inner = true;
  source.drop = [&] {
    inner = port.Relieve();
    return 8;
  };
  ASSERT_TRUE(port.Attach(&source));
  EXPECT_TRUE(port.Relieve());
  EXPECT_FALSE(inner);
  EXPECT_EQ(source.calls, 1);
  // And the thread may ask again.
  EXPECT_TRUE(port.Relieve());
  port.Detach();
}

TEST(ReliefPort, ASecondThreadIsHeardBesideTheFirst) {
  ReliefPort port;
  Source source;
  bool other = false;
  std::atomic<bool> is_inner = false;
  source.drop = [&]() -> int64_t {
    if (!is_inner.exchange(true)) {
      std::thread([&] { other = port.Relieve(); }).join();
    }
    return 8;
  };
  ASSERT_TRUE(port.Attach(&source));
  EXPECT_TRUE(port.Relieve());
  EXPECT_TRUE(other);
  EXPECT_EQ(source.calls, 2);
  port.Detach();
}

TEST(ReliefPort, ThrowsNothingIntoTheAllocator) {
  ReliefPort port;
  Source source;
  source.drop = []() -> int64_t { throw std::runtime_error("no memory"); };
  ASSERT_TRUE(port.Attach(&source));
  EXPECT_FALSE(port.Relieve());
  source.drop = nullptr;
  EXPECT_TRUE(port.Relieve());
  port.Detach();  // does not wait for the call that threw
}

TEST(ReliefPort, NoneComesAfterDetach) {
  ReliefPort port;
  Source source;
  ASSERT_TRUE(port.Attach(&source));
  port.Detach();
  EXPECT_FALSE(port.Relieve());
  EXPECT_EQ(source.calls, 0);
}

TEST(ReliefPort, DetachWaitsForTheCallThatIsInside) {
  ReliefPort port;
  Source source;
  std::promise<void> entered;
  std::promise<void> leave;
  source.drop = [&]() -> int64_t {
    entered.set_value();
    leave.get_future().wait();
    return 8;
  };
  ASSERT_TRUE(port.Attach(&source));
  std::thread allocating([&] { port.Relieve(); });
  entered.get_future().wait();
  std::future<void> detached =
      std::async(std::launch::async, [&] { port.Detach(); });
  EXPECT_EQ(detached.wait_for(std::chrono::milliseconds(50)),
            std::future_status::timeout);
  leave.set_value();
  detached.get();
  EXPECT_FALSE(port.Relieve());
  allocating.join();
  EXPECT_EQ(source.calls, 1);
}

}  // namespace
}  // namespace terrace
