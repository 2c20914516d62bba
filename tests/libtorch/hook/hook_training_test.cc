// Training with the parameters below has the losses and parameters of training
// without, bit for bit.
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/libtorch/hook/hook_fixture.h"

namespace terrace {
namespace {

namespace nn = ::torch::nn;

constexpr int64_t kTokens = 61;
constexpr int64_t kModelWidth = 32;

struct TransformerImpl : nn::Module {
  TransformerImpl() {
    embedding =
        register_module("embedding", nn::Embedding(kTokens, kModelWidth));
    const nn::TransformerEncoderLayer layer(
        nn::TransformerEncoderLayerOptions(kModelWidth, 4)
            .dim_feedforward(2 * kModelWidth)
            .dropout(0.1));
    encoder = register_module("encoder", nn::TransformerEncoder(layer, 2));
    head = register_module("head", nn::Linear(kModelWidth, kTokens));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    return head(encoder(embedding(tokens)));
  }

  nn::Embedding embedding{nullptr};
  nn::TransformerEncoder encoder{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(Transformer);

enum class Algorithm : uint8_t { kSgd, kAdamW };

// What one run leaves: losses of each step, then all parameters.
std::vector<at::Tensor> Train(
    Transformer& model, Algorithm algorithm,
    const std::function<void(const char*)>& at_boundary) {
  std::unique_ptr<::torch::optim::Optimizer> optimizer;
  if (algorithm == Algorithm::kSgd) {
    optimizer = std::make_unique<::torch::optim::SGD>(
        model->parameters(),
        ::torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
  } else {
    optimizer = std::make_unique<::torch::optim::AdamW>(
        model->parameters(), ::torch::optim::AdamWOptions(1e-2));
  }
  at::manual_seed(5);
  std::vector<at::Tensor> left;
  for (int step = 0; step < 5; ++step) {
    optimizer->zero_grad();
    for (int micro = 0; micro < 2; ++micro) {  // accumulated
      const at::Tensor tokens = at::randint(0, kTokens, {7, 4});
      const at::Tensor targets = at::randint(0, kTokens, {28});
      at::Tensor loss = nn::functional::cross_entropy(
          model->forward(tokens).reshape({28, kTokens}), targets);
      at_boundary("forward");
      loss.backward();
      left.push_back(loss.detach().clone());
      at_boundary("backward");
    }
    optimizer->step();
    at_boundary("step");
  }
  model->eval();
  {
    const c10::NoGradGuard guard;
    left.push_back(model->forward(at::arange(0, 20).view({5, 4})).clone());
  }
  {
    const c10::InferenceMode inference;
    left.push_back(model->forward(at::arange(0, 20).view({5, 4})).clone());
  }
  for (const at::Tensor& parameter : model->parameters()) {
    left.push_back(parameter.detach().clone());
  }
  return left;
}

class HookTrainingTest : public HookTest,
                         public testing::WithParamInterface<Algorithm> {
 protected:
  static std::vector<at::Tensor> Plain(Algorithm algorithm) {
    at::manual_seed(1);
    Transformer model;
    return Train(model, algorithm, [](const char*) {});
  }
  // With a window of this share of the parameters; how much of them is there.
  std::vector<at::Tensor> Managed(
      int percent, const std::function<void(const char*)>& at_boundary) {
    at::manual_seed(1);
    Transformer model;
    int64_t bytes = 0;
    std::vector<NamedTensor> tensors;
    for (const auto& parameter : model->named_parameters()) {
      tensors.push_back({parameter.key(), parameter.value()});
      bytes += WindowBytes(
          static_cast<int64_t>(parameter.value().storage().nbytes()), 1);
    }
    const int64_t window = bytes * percent / 100 / 4096 * 4096;
    // An operation may take more than a share of them; all take no more than
    // they are.
    const int64_t spare = percent < 100 ? 64 << 10 : 0;
    Make(window, spare, {.verify_clean = true});
    const absl::Status managed = hook().Manage(tensors);
    EXPECT_TRUE(managed.ok()) << managed;
    std::vector<at::Tensor> left = Train(model, GetParam(), at_boundary);
    EXPECT_EQ(hook().stats().unmarked_writes, 0);
    EXPECT_EQ(hook().stats().failures, 0) << hook().error();
    stats_ = hook().stats();
    EXPECT_TRUE(hook().Close(Hook::AtClose::kRestore).ok());
    return left;
  }
  static void ExpectSame(const std::vector<at::Tensor>& left,
                         const std::vector<at::Tensor>& right) {
    ASSERT_EQ(left.size(), right.size());
    for (size_t i = 0; i < left.size(); ++i) {
      EXPECT_TRUE(left[i].equal(right[i])) << i;
    }
  }

  HookStats stats_;
};
INSTANTIATE_TEST_SUITE_P(Algorithms, HookTrainingTest,
                         testing::Values(Algorithm::kSgd, Algorithm::kAdamW));

TEST_P(HookTrainingTest, WithEverythingInTheWindow) {
  at::set_num_threads(1);
  ExpectSame(Managed(100, [](const char*) {}), Plain(GetParam()));
  EXPECT_EQ(stats_.fetches, 0);
}

TEST_P(HookTrainingTest, WithAQuarterInTheWindow) {
  at::set_num_threads(1);
  ExpectSame(Managed(25, [](const char*) {}), Plain(GetParam()));
  EXPECT_GT(stats_.fetches, 100);
  EXPECT_GT(stats_.clean_drops, 100);
}

TEST_P(HookTrainingTest, EvictedAtEveryBoundary) {
  at::set_num_threads(1);
  ExpectSame(
      Managed(100, [this](const char*) { EXPECT_GT(hook().EvictAll(), 0); }),
      Plain(GetParam()));
  EXPECT_GT(stats_.fetches, 100);
}

}  // namespace
}  // namespace terrace
