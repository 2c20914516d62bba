// The small model with what its forward saves below, beside one in memory.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/libtorch/offload/offload_fixture.h"

namespace terrace {

// A hidden tensor of that many tokens.
inline constexpr int64_t kRows = 128;
inline constexpr int64_t kActivationBytes = kRows * kWidth * 4;
// What each layer and the last product take, but for the frozen one, and the
// results of all tanh.
inline constexpr int64_t kActivations = 2 * kLayers;

class ActivationsTest : public OffloadTest {
 protected:
  ActivationsTest() {
    at::manual_seed(1);  // the fixture's model again
    plain_ = TiedModel();
  }

  // Alone, with memory for six of them.
  OffloadOptions Alone() const {
    OffloadOptions options = Bytes(256 << 10);
    options.parameters = false;
    options.activations = true;
    options.activations_above_bytes = 16 << 10;
    return options;
  }

  static at::Tensor TokensOf(int64_t seed, int64_t rows = kRows) {
    at::manual_seed(static_cast<uint64_t>(seed));
    return at::randint(0, kTokens, {rows});
  }
  static at::Tensor LossOf(TiedModel& model, const at::Tensor& tokens) {
    return model->forward(tokens).sum();
  }
  // The model's with its forward in a scope.
  at::Tensor Below(int64_t seed, int64_t rows = kRows) {
    const at::Tensor tokens = TokensOf(seed, rows);
    const ActivationScope saving = offload_->SaveActivations();
    return LossOf(model_, tokens);
  }
  at::Tensor Plain(int64_t seed, int64_t rows = kRows) {
    return LossOf(plain_, TokensOf(seed, rows));
  }

  static std::vector<at::Tensor> GradientsOf(TiedModel& model) {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& each : model->parameters()) {
      if (each.grad().defined()) gradients.push_back(each.grad());
    }
    return gradients;
  }
  void ExpectSameGradients() {
    const auto found = GradientsOf(model_);
    const auto expected = GradientsOf(plain_);
    ASSERT_EQ(found.size(), expected.size());
    ASSERT_FALSE(found.empty());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(found[i].equal(expected[i])) << i;
    }
  }
  void ZeroGradients() {
    model_->zero_grad();
    plain_->zero_grad();
  }
  SavedStats Saved() const { return offload_->stats().hook.saved; }
  // In the files.
  int64_t UsedBelow() const {
    return offload_->stats().runtime.tiers.back().used_bytes;
  }

  TiedModel plain_{nullptr};
};

}  // namespace terrace
