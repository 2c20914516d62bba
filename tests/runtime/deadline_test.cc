// Deadlines are by the wall clock as their caller reads it, and are kept by
// the runtime's own: in virtual time, with a wall clock that is set.
#include <memory>
#include <optional>

#include "gtest/gtest.h"
#include "terrace/optimizer.h"
#include "terrace/runtime.h"
#include "tests/optimizer/reference_optimizer.h"
#include "tests/support/runtime_fixture.h"

namespace terrace {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kBudget = 256 << 10;
constexpr int64_t kElements = 100'000;  // 800 kB of state
constexpr absl::Duration kPatience = absl::Seconds(30);

// Set back or forward by far more than any call's patience.
class DeadlineTest : public testing::TestWithParam<int> {
 protected:
  DeadlineTest() : model_(Model::Of({{.name = "w", .count = kElements}}, 1)) {
    TestRuntimeOptions options;
    options.budget_bytes = kBudget;
    options.io_timeout = absl::Hours(100);  // not what is waited for here
    world_.emplace(TestWorld::kVirtual, options);
  }

  Runtime& runtime() { return world_->runtime(); }
  VirtualClock& clock() { return world_->virtual_clock(); }
  void SetWall() { clock().SetWall(absl::Hours(GetParam())); }
  Time Soon() { return clock().WallNow() + kPatience; }
  // A step whose state comes from the disk.
  std::unique_ptr<OffloadedOptimizer> MakeOptimizer() {
    auto created = OffloadedOptimizer::Create(runtime(), model_.specs(),
                                              {.chunk_bytes = 64 << 10});
    EXPECT_TRUE(created.ok()) << created.status();
    return *std::move(created);
  }

  Model model_;
  std::optional<TestRuntime> world_;
};
INSTANTIATE_TEST_SUITE_P(Hours, DeadlineTest, testing::Values(-3, 3),
                         [](const auto& hours) {
                           return hours.param < 0 ? "SetBack" : "SetForward";
                         });

TEST_P(DeadlineTest, WhatIsInTimeByTheCallersClockIsServed) {
  const TensorId tensor = world_->Register("a", kPage);
  SetWall();
  auto queue = runtime().OpenQueue(kPage, 1, Soon());
  ASSERT_TRUE(queue.ok()) << queue.status();
  ASSERT_TRUE((*queue)->Push({{tensor, Access::kOverwrite}}, 1, Soon()).ok());
  absl::StatusOr<Ready> ready = (*queue)->Next(Soon());
  ASSERT_TRUE(ready.ok()) << ready.status();
  ASSERT_TRUE(ready->pins.ok()) << ready->pins.status();
  ready->pins->clear();
  queue->reset();
  const absl::StatusOr<Pin> pin =
      runtime().Acquire(tensor, Access::kRead, Soon());
  EXPECT_TRUE(pin.ok()) << pin.status();
}

TEST_P(DeadlineTest, WhatIsNeverServedEndsWhenTheCallersPatienceDoes) {
  const TensorId tensor = world_->Register("a", kPage);
  const TensorId other = world_->Register("b", kPage);
  auto queue = world_->OpenQueue(kPage, 1);
  auto held = world_->Take(*queue, tensor, Access::kOverwrite);
  ASSERT_TRUE(held.ok()) << held.status();
  auto second = world_->OpenQueue(kPage, 1);
  SetWall();
  absl::Time asked = clock().Now();
  ASSERT_TRUE(second->Push({{tensor, Access::kUpdate}}, 1, Soon()).ok());
  absl::StatusOr<Ready> ready = second->Next(clock().WallNow() + kPatience / 2);
  EXPECT_TRUE(absl::IsDeadlineExceeded(ready.status())) << ready.status();
  EXPECT_EQ(clock().Now() - asked, kPatience / 2);
  ready = second->Next(absl::InfiniteFuture());
  ASSERT_TRUE(ready.ok()) << ready.status();
  EXPECT_TRUE(absl::IsResourceExhausted(ready->pins.status()));
  EXPECT_EQ(clock().Now() - asked, kPatience);
  asked = clock().Now();
  EXPECT_FALSE(runtime().Acquire(tensor, Access::kUpdate, Soon()).ok());
  EXPECT_EQ(clock().Now() - asked, kPatience);
  // One that is past already is no wait, and no failure of what is ready.
  ASSERT_TRUE(second->Push({{other, Access::kOverwrite}}, 2, Soon()).ok());
  ready = second->Next(Soon());
  ASSERT_TRUE(ready.ok() && ready->pins.ok());
  asked = clock().Now();
  ready = second->Next(clock().WallNow());
  EXPECT_FALSE(ready.ok());
  EXPECT_EQ(clock().Now(), asked);
}

TEST_P(DeadlineTest, ACloseIsGivenWhatItsCallerGaveIt) {
  const TensorId tensor = world_->Register("a", kPage);
  {
    auto queue = world_->OpenQueue(kPage, kBudget / (2 * kPage));  // all of it
    world_->faults().FailAll({.kind = FaultKind::kNever});
    world_->Fill(*queue, tensor, 7);
    ASSERT_TRUE(world_->WaitUntil(
        [this] { return world_->faults().calls(CallFilter::kWrites) > 0; }));
  }
  SetWall();
  const absl::Time asked = clock().Now();
  const absl::Status late = runtime().Close(Soon());
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_EQ(clock().Now() - asked, kPatience);
}

TEST_P(DeadlineTest, StepsGoOnAfterTheWallClockWasSet) {
  auto optimizer = MakeOptimizer();
  ReferenceOptimizer reference(model_, {});
  for (int step = 1; step <= 3; ++step) {
    model_.DrawGradients(step);
    reference.Step({.learning_rate = 1e-2}, model_);
    const absl::Status stepped =
        optimizer->Step({.learning_rate = 1e-2}, model_.data(), Soon());
    ASSERT_TRUE(stepped.ok()) << "step " << step << ": " << stepped;
    SetWall();
  }
  std::vector<float> state(kElements);
  EXPECT_TRUE(optimizer
                  ->ReadState(0, OffloadedOptimizer::StateKind::kFirstMoment,
                              absl::MakeSpan(state), Soon())
                  .ok());
  EXPECT_TRUE(optimizer
                  ->WriteState(0, OffloadedOptimizer::StateKind::kFirstMoment,
                               0, state, Soon())
                  .ok());
  EXPECT_TRUE(optimizer->Reset(Soon()).ok());
}

// A Reset opens another window where requests are pushed, and a StateWriter
// takes chunks in.
TEST_P(DeadlineTest, WhatIsLeftIsResetAndLoadedAfterTheWallClockWasSet) {
  auto optimizer = MakeOptimizer();
  model_.DrawGradients(1);
  ASSERT_TRUE(optimizer->Step({}, model_.data(), Soon()).ok());
  world_->faults().FailAll({.kind = FaultKind::kNever}, CallFilter::kReads);
  EXPECT_FALSE(optimizer->Step({}, model_.data(), Soon()).ok());
  EXPECT_TRUE(optimizer->incomplete());
  SetWall();
  world_->faults().Clear();
  const absl::Time asked = clock().Now();
  const absl::Status reset = optimizer->Reset(Soon());
  ASSERT_TRUE(reset.ok()) << reset;
  {
    auto writer = optimizer->OpenStateWriter(Soon());
    ASSERT_TRUE(writer.ok()) << writer.status();
    const std::vector<float> values(kElements, 0.5f);
    const absl::Status written = (*writer)->Write(
        0, 0, {.first_moment = values, .second_moment = values}, Soon());
    ASSERT_TRUE(written.ok()) << written;
    ASSERT_TRUE((*writer)->Commit(1, {1}).ok());
  }
  EXPECT_LT(clock().Now() - asked, kPatience);
  std::vector<float> state(kElements);
  ASSERT_TRUE(optimizer
                  ->ReadState(0, OffloadedOptimizer::StateKind::kFirstMoment, 0,
                              absl::MakeSpan(state), Soon())
                  .ok());
  EXPECT_EQ(state, std::vector<float>(kElements, 0.5f));
}

// Neither longer nor shorter, whatever the wall says meanwhile.
TEST_P(DeadlineTest, AStepUnderWayKeepsItsPatience) {
  auto optimizer = MakeOptimizer();
  model_.DrawGradients(1);
  ASSERT_TRUE(optimizer->Step({}, model_.data(), Soon()).ok());
  world_->faults().FailAll({.kind = FaultKind::kNever}, CallFilter::kReads);
  const absl::Time asked = clock().Now();
  clock().AddEvent(asked + kPatience / 3, [this] { SetWall(); });
  const absl::Status late = optimizer->Step({}, model_.data(), Soon());
  EXPECT_TRUE(absl::IsDeadlineExceeded(late) || absl::IsResourceExhausted(late))
      << late;
  EXPECT_EQ(clock().Now() - asked, kPatience);
  world_->faults().Clear();
  EXPECT_TRUE(optimizer->Step({}, model_.data(), Soon()).ok());
}

}  // namespace
}  // namespace terrace
