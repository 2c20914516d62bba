// What comes beside operations: it waits for the room that these have, they
// wait for its, and where each waits for the other it comes beyond the budget.
#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/libtorch/hook/window/byte_window_fixture.h"

namespace terrace {
namespace {

// Two of three tensors have room.
class WindowBesideTest : public ByteWindowTest {
 protected:
  void MakeThree(ByteWindowOptions options = {}) {
    Make(8, /*spare_pages=*/0, options);
    Fill({3, 3, 3});
  }

  absl::Status TakeBeside(int i) {
    window().room().TakeBeside(ResidentBytes(tensor(i).size_bytes()));
    return Take({i}, {.caller = FetchAsker::Caller::kBeside});
  }
  void GiveBeside(int i) {
    window().EndUse(tensor(i));
    window().room().GiveBeside(ResidentBytes(tensor(i).size_bytes()));
  }
  // As an operation that has `has` and takes another one.
  absl::Status TakeWith(int has, int i) {
    WindowTensor* const in_use[] = {&tensor(has)};
    return Take({i}, {.in_use = in_use});
  }
  int64_t beyond() { return world().runtime().GetStats().bytes.groups_beyond; }
};

TEST_F(WindowBesideTest, ItWaitsForTheRoomOfOperations) {
  MakeThree();
  ASSERT_TRUE(Take({0, 1}).ok());
  auto taken = std::async(std::launch::async, [this] { return TakeBeside(2); });
  EXPECT_EQ(taken.wait_for(std::chrono::milliseconds(20)),
            std::future_status::timeout);
  window().EndUse(tensor(0));
  EXPECT_TRUE(taken.get().ok());
  EXPECT_TRUE(HasPattern(tensor(2).bytes(), 2));
  EXPECT_EQ(beyond(), 0);
  GiveBeside(2);
  window().EndUse(tensor(1));
}

TEST_F(WindowBesideTest, ButNotWhereTheseWaitForIt) {
  MakeThree();
  ASSERT_TRUE(Take({0, 1}).ok());
  auto taken = std::async(std::launch::async, [this] { return TakeBeside(2); });
  EXPECT_EQ(taken.wait_for(std::chrono::milliseconds(50)),
            std::future_status::timeout);
  for (const int i : {0, 1}) window().BeginWaiting(tensor(i));
  const absl::Status status = taken.get();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(beyond(), 1);
  EXPECT_TRUE(HasPattern(tensor(2).bytes(), 2));
  for (const int i : {0, 1}) window().EndWaiting(tensor(i));
  GiveBeside(2);
  EXPECT_FALSE(IsHere(2));
  EndUses({0, 1});
}

TEST_F(WindowBesideTest, OperationsWaitForItsRoom) {
  MakeThree();
  ASSERT_TRUE(Take({0}).ok());
  ASSERT_TRUE(TakeBeside(1).ok());
  auto taken =
      std::async(std::launch::async, [this] { return TakeWith(0, 2); });
  EXPECT_EQ(taken.wait_for(std::chrono::milliseconds(20)),
            std::future_status::timeout);
  GiveBeside(1);
  EXPECT_TRUE(taken.get().ok());
  EXPECT_EQ(window().stats().peaks.over_budget_bytes, 0);
  EXPECT_EQ(beyond(), 0);
  EndUses({0, 2});
}

// There is room beside the window: nothing waits.
TEST_F(WindowBesideTest, NoOperationIsBeyondTheWindowBecauseOfIt) {
  Make(12, /*spare_pages=*/4);
  Fill({3, 3, 3});
  ASSERT_TRUE(Take({0}).ok());
  ASSERT_TRUE(TakeBeside(1).ok());
  ASSERT_TRUE(Take({2}).ok());
  EXPECT_EQ(window().stats().used_bytes, 12 * kPage);
  EXPECT_EQ(window().stats().peaks.over_budget_bytes, 0);
  GiveBeside(1);
  EXPECT_EQ(window().EvictAll(), 1);
  ASSERT_TRUE(Take({1}).ok());
  EXPECT_EQ(window().stats().peaks.over_budget_bytes, 4 * kPage);
  EndUses({0, 1, 2});
}

// Whenever it ends: what looks for room then finds it.
TEST_F(WindowBesideTest, NoOperationIsRefusedForWhatIsAboutToEnd) {
  MakeThree();
  std::atomic<bool> is_over = false;
  std::thread beside([&] {
    while (!is_over) {
      EXPECT_TRUE(TakeBeside(1).ok());
      GiveBeside(1);
    }
  });
  for (int i = 0; i < 3000 && !HasFailure(); ++i) {
    EXPECT_TRUE(Take({0}).ok());
    const absl::Status status = TakeWith(0, 2);
    EXPECT_TRUE(status.ok()) << status;
    EndUses({0, 2});
  }
  is_over = true;
  beside.join();
  EXPECT_EQ(window().stats().failures, 0);
}

// Another tensor is computed with for as long as it takes, so that no pin's end
// tells of the room: what is being written back makes it.
TEST_F(WindowBesideTest, RoomOfATensorsOwnComesFromWhatIsBeingWritten) {
  Make(8);
  Fill({3, 3});
  ASSERT_TRUE(Take({1}).ok());
  world().faults().FailAll(
      {.kind = FaultKind::kDelay, .delay = absl::Milliseconds(100)},
      CallFilter::kWrites);
  FakeTensor own("its own", 3 * kPage);
  own.SetNumber(0);
  ASSERT_TRUE(window().Add({&own}).ok());
  const std::vector<std::byte> source(3 * kPage);
  own.word().Pin();
  const absl::Status filled = window().Fill(own, source.data());
  EXPECT_TRUE(filled.ok()) << filled;
  EXPECT_FALSE(IsHere(0));
  window().EndUse(own);
  window().EndUse(tensor(1));
  world().faults().Clear();
  Remove(own);
}

TEST_F(WindowBesideTest, ItIsNothingThatOperationsWaitedFor) {
  MakeThree();
  window().EvictAll();
  ASSERT_TRUE(TakeBeside(1).ok());
  GiveBeside(1);
  const ByteWindowStats stats = window().stats();
  EXPECT_EQ(stats.fetches, 0);
  EXPECT_EQ(stats.fetched_bytes, 0);
  EXPECT_EQ(stats.blocked, absl::ZeroDuration());
  EXPECT_EQ(tensor(1).blocked(), absl::ZeroDuration());
}

}  // namespace
}  // namespace terrace
