// Optimizers that join an offloaded model, beside the same ones in memory.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libtorch/tensor_check.h"
#include "terrace/torch/optimizer.h"
#include "tests/libtorch/offload/offload_fixture.h"
#include "tests/libtorch/torch_fixture.h"

namespace terrace {

inline constexpr double kRate = 1e-2;

// Of parameters that are trained, each once.
inline std::vector<at::Tensor> TrainedOf(TiedModel& model) {
  std::vector<at::Tensor> trained;
  for (const at::Tensor& each : model->parameters()) {
    const bool is_known = std::any_of(
        trained.begin(), trained.end(),
        [&](const at::Tensor& other) { return other.is_same(each); });
    if (each.requires_grad() && !is_known) trained.push_back(each);
  }
  return trained;
}

inline OptimizerOptions WithRate(double rate = kRate) {
  OptimizerOptions options;
  options.adam.learning_rate = rate;
  return options;
}

// Two backward passes of one step.
inline std::vector<at::Tensor> TwoPasses(TiedModel& model, int64_t step) {
  at::manual_seed(static_cast<uint64_t>(100 + step));
  std::vector<at::Tensor> losses;
  for (int pass = 0; pass < 2; ++pass) {
    const at::Tensor tokens = at::randint(0, kTokens, {7, 4});
    const at::Tensor targets = at::randint(0, kTokens, {28});
    const at::Tensor loss = ::torch::nn::functional::cross_entropy(
        model->forward(tokens).reshape({28, kTokens}), targets);
    loss.backward();
    losses.push_back(loss.detach().clone());
  }
  return losses;
}

// The same numbers twice: in memory over a Runtime, and joined.
class JoinedTest : public OffloadTest {
 protected:
  JoinedTest() : runtime_(MakeRuntime()) {
    at::manual_seed(1);  // the fixture's model again
    plain_ = TiedModel();
    reference_ =
        *OffloadedAdamW::Create(*runtime_, TrainedOf(plain_), WithRate());
  }

  OffloadOptions Share(double share) const {
    OffloadOptions options = Bytes(0);
    options.memory_budget_share = share;
    return options;
  }
  std::unique_ptr<OffloadedAdamW> Join(const OptimizerOptions& options) {
    auto made = OffloadedAdamW::Create(*offload_, TrainedOf(model_), options);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }
  void MakeJoined(const OffloadOptions& options) {
    Make(options);
    optimizer_ = Join(WithRate());
    ASSERT_NE(optimizer_, nullptr);
  }

  // Steps of both, whose losses are the same bits. Updates of the last one may
  // go on.
  void StepBoth(int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      offload_->BeginStep();
      optimizer_->zero_grad();
      reference_->zero_grad();
      const std::vector<at::Tensor> losses = TwoPasses(model_, step);
      ExpectSame(losses, TwoPasses(plain_, step));
      const absl::Status status = optimizer_->TryStep();
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(reference_->TryStep().ok());
    }
  }
  void ExpectSameParameters() {
    ExpectSame(model_->parameters(), plain_->parameters());
  }
  void ExpectSameState() {
    const std::vector<at::Tensor> ours = TrainedOf(model_);
    const std::vector<at::Tensor> theirs = TrainedOf(plain_);
    for (size_t i = 0; i < ours.size(); ++i) {
      SCOPED_TRACE(i);
      const auto mine = optimizer_->StateOf(ours[i]);
      const auto expected = reference_->StateOf(theirs[i]);
      ASSERT_TRUE(mine.ok() && expected.ok())
          << mine.status() << expected.status();
      EXPECT_EQ(mine->step, expected->step);
      EXPECT_TRUE(mine->exp_avg.equal(expected->exp_avg));
      EXPECT_TRUE(mine->exp_avg_sq.equal(expected->exp_avg_sq));
    }
  }
  static void ExpectSame(const std::vector<at::Tensor>& left,
                         const std::vector<at::Tensor>& right) {
    ASSERT_EQ(left.size(), right.size());
    for (size_t i = 0; i < left.size(); ++i) {
      EXPECT_TRUE(left[i].equal(right[i])) << i;
    }
  }
  void ExpectWithinBudget() {
    const OffloadStats stats = offload_->stats();
    EXPECT_LE(stats.runtime.host.peak_bytes, stats.budget_bytes);
    EXPECT_EQ(stats.hook.failures, 0) << offload_->error();
  }

  std::unique_ptr<Runtime> runtime_;
  TiedModel plain_{nullptr};
  std::unique_ptr<OffloadedAdamW> reference_;
  std::unique_ptr<OffloadedAdamW> optimizer_;
};

}  // namespace terrace
