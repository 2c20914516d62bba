// request.h: steps and the trace that repeats.
#include "tests/contract/contract_fixture.h"

namespace terrace {
namespace {

class StepContract : public ContractTest {
 protected:
  // Fills the tensors in the first step, and finds them so in the other two.
  void WalkThreeSteps(RequestQueue& queue,
                      const std::vector<TensorId>& tensors) {
    for (int64_t step = 1; step <= 3; ++step) {
      ASSERT_TRUE(queue.BeginStep(step).ok());
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (step == 1) {
          world().Fill(queue, tensors[i], i);
        } else {
          EXPECT_TRUE(world().Holds(queue, tensors[i], i));
        }
      }
      ASSERT_TRUE(queue.CommitStep({.step = step}).ok());
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, StepContract, testing::ValuesIn(kAllWorlds),
                         WorldParamName);

TEST_P(StepContract, StepsBeginOnceAndEndOnce) {
  Make(4);
  auto queue = world().OpenQueue(kPage, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(queue->CommitStep({.step = 1})));
  EXPECT_TRUE(absl::IsFailedPrecondition(queue->AbortStep()));
  EXPECT_TRUE(queue->BeginStep(1).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(queue->BeginStep(2)));
  EXPECT_TRUE(queue->CommitStep({.step = 1}).ok());
  EXPECT_TRUE(queue->BeginStep(2).ok());
  EXPECT_TRUE(queue->AbortStep().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(queue->CommitStep({.step = 2})));
}

TEST_P(StepContract, ACommitOfAnotherStepIsRefusedAndTheStepStaysOpen) {
  Make(4);
  auto queue = world().OpenQueue(kPage, 1);
  ASSERT_TRUE(queue->BeginStep(6).ok());
  const absl::Status refused = queue->CommitStep({.step = 7});
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_EQ(refused.message(), "step 6 is open, not step 7");
  EXPECT_TRUE(absl::IsFailedPrecondition(queue->BeginStep(7)));
  EXPECT_TRUE(queue->CommitStep({.step = 6}).ok());
  EXPECT_TRUE(queue->BeginStep(7).ok());
}

TEST_P(StepContract, AbortKeepsWhatWasPublished) {
  Make(4);
  const TensorId a = world().Register("a", kPage);
  auto queue = world().OpenQueue(kPage, 1);
  ASSERT_TRUE(queue->BeginStep(1).ok());
  world().Fill(*queue, a, 9);
  ASSERT_TRUE(queue->AbortStep().ok());
  EXPECT_TRUE(world().Holds(*queue, a, 9));
}

// Fills `count` tensors as step 1; then walks them as later steps.
TEST_P(StepContract, ARepeatedTraceIsPrefetched) {
  Make(4);
  const std::vector<TensorId> tensors = world().RegisterMany(12, kPage);
  auto queue = world().OpenQueue(kPage, 4);
  for (int64_t step = 1; step <= 4; ++step) {
    ASSERT_TRUE(queue->BeginStep(step).ok());
    for (int i = 0; i < 12; ++i) {
      if (step == 1) {
        world().Fill(*queue, tensors[i], i);
        continue;
      }
      // A customer that computes for a while finds the next one there.
      if (step > 2) {
        EXPECT_TRUE(world().WaitUntil([&] {
          const Stats now = stats();
          return now.prefetch_reads > now.prefetch_hits;
        }));
      }
      EXPECT_TRUE(world().Holds(*queue, tensors[i], i));
    }
    ASSERT_TRUE(queue->CommitStep({.step = step}).ok());
  }
  const Stats after = stats();
  EXPECT_GE(after.prefetch_hits, 20);
  EXPECT_LE(after.demand_reads, 16);
}

// Both slots have what comes next, until one is lost. In real time a demand may
// come so close to a read ahead that no count tells when both are filled.
TEST_P(StepContract, AnIdleQueueHasWhatComesNextReadIntoALostTensorsSlot) {
  Make(2);
  if (!world().is_virtual()) GTEST_SKIP() << "what is read ahead is counted";
  const std::vector<TensorId> tensors = world().RegisterMany(6, kPage);
  auto queue = world().OpenQueue(kPage, 2);
  ASSERT_NO_FATAL_FAILURE(WalkThreeSteps(*queue, tensors));
  ASSERT_TRUE(world().WaitUntil([&] {
    const Stats now = stats();
    return now.prefetch_reads >= now.prefetch_hits + 2;
  }));
  const int64_t before = stats().prefetch_reads;
  ASSERT_TRUE(runtime().Unregister(tensors[0]).ok());
  EXPECT_TRUE(
      world().WaitUntil([&] { return stats().prefetch_reads > before; }));
}

TEST_P(StepContract, WithoutPrefetchEveryReadIsDemanded) {
  TestRuntimeOptions options;
  options.prefetch = false;
  Make(2, options);
  const std::vector<TensorId> tensors = world().RegisterMany(6, kPage);
  auto queue = world().OpenQueue(kPage, 2);
  ASSERT_NO_FATAL_FAILURE(WalkThreeSteps(*queue, tensors));
  EXPECT_EQ(stats().prefetch_reads, 0);
  EXPECT_GT(stats().demand_reads, 0);
}

}  // namespace
}  // namespace terrace
