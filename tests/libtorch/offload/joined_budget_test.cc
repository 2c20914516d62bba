// A budget in bytes that holds all of the model is for all optimizers that join
// it, once.
#include "tests/libtorch/offload/joined_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using Group = ::torch::optim::OptimizerParamGroup;

class JoinedBudgetTest : public JoinedTest {
 protected:
  void MakeInMemory(int64_t budget) {
    OffloadOptions options = Bytes(budget);
    options.nvme_paths.clear();
    Make(options);
  }
  // Of every other parameter.
  absl::StatusOr<std::unique_ptr<OffloadedAdamW>> JoinHalf(size_t first) {
    const std::vector<at::Tensor> trained = TrainedOf(model_);
    std::vector<at::Tensor> half;
    for (size_t i = first; i < trained.size(); i += 2) {
      half.push_back(trained[i]);
    }
    return OffloadedAdamW::Create(*offload_, half, WithRate());
  }
  static absl::Status StepWith(OffloadedAdamW& optimizer, int64_t count) {
    const at::Tensor more = at::ones({count}).set_requires_grad(true);
    optimizer.add_param_group(Group({more}));
    return optimizer.TryStep();
  }
};

// Each takes 4 MiB that parameters pass through, and its state.
TEST_F(JoinedBudgetTest, WhatOneHasAnotherHasNot) {
  if (folder_.has_daemon()) GTEST_SKIP() << "a daemon has a disk for it";
  MakeInMemory(8 << 20);
  auto first = JoinHalf(0);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status refused = JoinHalf(1).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("is below the minimum of"));
  first->reset();
  auto second = JoinHalf(1);
  EXPECT_TRUE(second.ok()) << second.status();
}

TEST_F(JoinedBudgetTest, WhereItHoldsBothTheyHaveTheBitsOfOne) {
  MakeInMemory(14 << 20);
  const auto first = JoinHalf(0), second = JoinHalf(1);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  for (int64_t step = 1; step <= 3; ++step) {
    ExpectSame(TwoPasses(model_, step), TwoPasses(plain_, step));
    for (OffloadedAdamW* const each :
         {first->get(), second->get(), reference_.get()}) {
      const absl::Status status = each->TryStep();
      ASSERT_TRUE(status.ok()) << status;
      each->zero_grad();
    }
  }
  ExpectSameParameters();
}

TEST_F(JoinedBudgetTest, ParametersThatComeLaterTakeWhatIsLeft) {
  if (folder_.has_daemon()) GTEST_SKIP() << "a daemon has a disk for them";
  MakeInMemory(14 << 20);
  const auto first = JoinHalf(0);
  auto second = JoinHalf(1);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  // State of 8 MB.
  const absl::Status refused = StepWith(**first, 1'000'000);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("are beyond its budget of"));
  (*first)->param_groups().pop_back();
  // It took none: the other has 2 MB, and then the first has no more than the
  // rest.
  const absl::Status other = StepWith(**second, 250'000);
  EXPECT_TRUE(other.ok()) << other;
  EXPECT_TRUE(absl::IsResourceExhausted(StepWith(**first, 500'000)));
  second->reset();
  const absl::Status alone = (*first)->TryStep();
  EXPECT_TRUE(alone.ok()) << alone;
}

// All that the budget has beside the model is for one parameter's state, until
// another comes.
TEST_F(JoinedBudgetTest, WithADiskParametersThatComeLaterHaveTheRestToo) {
  Make(Bytes(3 * kModelBytes));
  auto made =
      OffloadedAdamW::Create(*offload_, {TrainedOf(model_)[0]}, WithRate());
  ASSERT_TRUE(made.ok()) << made.status();
  const OffloadStats before = offload_->stats();
  const absl::Status later = StepWith(**made, 50'000);
  ASSERT_TRUE(later.ok()) << later;
  const OffloadStats after = offload_->stats();
  EXPECT_GT(after.joined_bytes, before.joined_bytes);
  EXPECT_EQ(after.budget_bytes, 3 * kModelBytes);
  EXPECT_GT(after.runtime.host.budget_bytes, before.runtime.host.budget_bytes);
  ExpectWithinBudget();
}

// Its state is one chunk; three are to be under way at a time.
TEST_F(JoinedBudgetTest, AnOptimizerOfOneChunkTakesMore) {
  Make(Share(1));
  auto made =
      OffloadedAdamW::Create(*offload_, {TrainedOf(model_)[0]}, WithRate());
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_EQ((*made)->offloaded().plan().chunks, 1);
  const absl::Status later = StepWith(**made, 50'000);
  EXPECT_TRUE(later.ok()) << later;
  EXPECT_GE((*made)->offloaded().plan().chunks, 3);
}

}  // namespace
}  // namespace terrace
