// Training a third of whose parameters have memory leaves the losses and
// parameters of LibTorch alone, bit for bit.
#include <algorithm>
#include <functional>

#include "tests/libtorch/offload/offload_fixture.h"

namespace terrace {
namespace {

enum class Algorithm : uint8_t { kSgd, kAdamW };

std::unique_ptr<::torch::optim::Optimizer> MakeOptimizer(Algorithm algorithm,
                                                         TiedModel& model) {
  std::vector<at::Tensor> trained;
  for (const at::Tensor& each : model->parameters()) {
    const bool is_known = std::any_of(
        trained.begin(), trained.end(),
        [&](const at::Tensor& other) { return other.is_same(each); });
    if (each.requires_grad() && !is_known) trained.push_back(each);
  }
  if (algorithm == Algorithm::kSgd) {
    return std::make_unique<::torch::optim::SGD>(
        trained,
        ::torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
  }
  return std::make_unique<::torch::optim::AdamW>(
      trained, ::torch::optim::AdamWOptions(1e-2));
}

// The losses, then all parameters.
std::vector<at::Tensor> Train(Algorithm algorithm, TiedModel& model,
                              const std::function<void()>& begin_step) {
  const auto optimizer = MakeOptimizer(algorithm, model);
  at::manual_seed(5);
  std::vector<at::Tensor> left;
  for (int step = 0; step < 4; ++step) {
    begin_step();
    optimizer->zero_grad();
    for (int pass = 0; pass < 2; ++pass) {  // accumulated
      const at::Tensor tokens = at::randint(0, kTokens, {7, 4});
      const at::Tensor targets = at::randint(0, kTokens, {28});
      const at::Tensor loss = ::torch::nn::functional::cross_entropy(
          model->forward(tokens).reshape({28, kTokens}), targets);
      loss.backward();
      left.push_back(loss.detach().clone());
    }
    optimizer->step();
  }
  for (const at::Tensor& each : model->parameters()) {
    left.push_back(each.detach().clone());
  }
  return left;
}

class OffloadTrainingTest : public OffloadTest,
                            public testing::WithParamInterface<Algorithm> {
 protected:
  std::vector<at::Tensor> Plain() {
    at::manual_seed(1);  // the fixture's model again
    TiedModel model;
    return Train(GetParam(), model, [] {});
  }
  std::vector<at::Tensor> Below() {
    return Train(GetParam(), model_, [this] { offload_->BeginStep(); });
  }
  static void ExpectSame(const std::vector<at::Tensor>& left,
                         const std::vector<at::Tensor>& right) {
    ASSERT_EQ(left.size(), right.size());
    for (size_t i = 0; i < left.size(); ++i) {
      EXPECT_TRUE(left[i].equal(right[i])) << i;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Algorithms, OffloadTrainingTest,
                         testing::Values(Algorithm::kSgd, Algorithm::kAdamW));

TEST_P(OffloadTrainingTest, AThirdOfTheBytesHasTheSameBits) {
  Make(Third());
  ExpectSame(Below(), Plain());
  const OffloadStats stats = offload_->stats();
  EXPECT_EQ(stats.parameter_bytes, kModelBytes);
  EXPECT_EQ(stats.budget_bytes, kModelBytes / 3);
  EXPECT_LE(stats.runtime.host.peak_bytes, kModelBytes / 3);
  EXPECT_LE(stats.hook.over_budget_bytes, 0);
  EXPECT_LE(stats.hook.window_peak_bytes, stats.window_bytes);
  EXPECT_EQ(stats.steps, 4);
  EXPECT_EQ(stats.hook.failures, 0) << offload_->error();
  EXPECT_GT(stats.hook.fetches + stats.hook.fetches_ahead, 4 * kLayers);
  EXPECT_GT(stats.hook.clean_drops, 0);
  EXPECT_GT(stats.runtime.bytes_written(), 0);
  // The same once more from memory.
  const std::vector<at::Tensor> below = [this] {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& each : model_->parameters()) {
      copies.push_back(each.detach().clone());
    }
    return copies;
  }();
  ASSERT_TRUE(offload_->Close(Offload::AtClose::kRestore).ok());
  ExpectSame(below, model_->parameters());
}

TEST_P(OffloadTrainingTest, EverythingInMemoryHasTheSameBits) {
  Make({});
  ExpectSame(Below(), Plain());
  const OffloadStats stats = offload_->stats();
  EXPECT_TRUE(stats.runtime.paths().empty());
  EXPECT_EQ(stats.hook.fetches, 0);
}

TEST_P(OffloadTrainingTest, TiesViewsAndFrozenOnesStayWhatTheyAre) {
  Make(Third());
  Below();
  // One storage, offloaded or not.
  EXPECT_EQ(offload_->stats().hook.managed_tensors, 1 + 2 * kLayers);
  EXPECT_TRUE(model_->out.is_same(model_->embedding->weight));
  EXPECT_TRUE(model_->first_rows.is_alias_of(model_->out));
  EXPECT_TRUE(model_->first_rows.equal(model_->out.detach().narrow(0, 0, 5)));
  ASSERT_TRUE(offload_->Close(Offload::AtClose::kRestore).ok());
  EXPECT_EQ(model_->first_rows.const_data_ptr(), model_->out.const_data_ptr());
  EXPECT_TRUE(model_->first_rows.equal(model_->out.detach().narrow(0, 0, 5)));
  at::manual_seed(1);
  TiedModel as_made;
  const auto expected = as_made->layers[3]->parameters();
  const auto found = model_->layers[3]->parameters();
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(found[i].equal(expected[i]));
  EXPECT_FALSE(model_->out.equal(as_made->out));
}

}  // namespace
}  // namespace terrace
