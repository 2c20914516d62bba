// A small model of LibTorch's C++ modules, and a folder for what is below.
#pragma once

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/torch/offload.h"
#include "tests/libtorch/offload_folder.h"
#include "tests/libtorch/thrown_by.h"

namespace terrace {

inline constexpr int64_t kTokens = 61;
inline constexpr int64_t kWidth = 64;
inline constexpr int kLayers = 16;

// Tokens to logits by an embedding, layers of which one is frozen, and the
// embedding again: registered a second time, and as a frozen view of its first
// rows.
struct TiedModelImpl : ::torch::nn::Module {
  TiedModelImpl() {
    embedding =
        register_module("embedding", ::torch::nn::Embedding(kTokens, kWidth));
    layers = register_module("layers", ::torch::nn::ModuleList());
    for (int i = 0; i < kLayers; ++i) {
      layers->push_back(::torch::nn::Linear(kWidth, kWidth));
    }
    for (at::Tensor& each : layers[3]->parameters()) {
      each.set_requires_grad(false);
    }
    out = register_parameter("out", embedding->weight);
    first_rows = register_parameter("first_rows",
                                    embedding->weight.detach().narrow(0, 0, 5),
                                    /*requires_grad=*/false);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor hidden = embedding(tokens);
    for (const auto& layer : *layers) {
      hidden =
          hidden + at::tanh(layer->as<::torch::nn::Linear>()->forward(hidden));
    }
    return at::linear(hidden, out) + first_rows.sum();
  }

  ::torch::nn::Embedding embedding{nullptr};
  ::torch::nn::ModuleList layers{nullptr};
  at::Tensor out, first_rows;
};
TORCH_MODULE(TiedModel);

// Of its storages, the two views of the embedding's counted once.
inline constexpr int64_t kModelBytes =
    4 * (kTokens * kWidth + kLayers * (kWidth + 1) * kWidth);

class OffloadTest : public testing::Test {
 protected:
  OffloadTest() {
    at::set_num_threads(1);  // tests share the machine
    at::manual_seed(1);
    model_ = TiedModel();
    for (const at::Tensor& each : model_->parameters()) {
      values_.push_back(each.detach().clone());
    }
    tokens_ = at::arange(0, 40).view({8, 5});
    const c10::NoGradGuard guard;
    answer_ = model_->forward(tokens_).clone();
  }

  OffloadOptions Bytes(int64_t budget) const {
    OffloadOptions options;
    options.memory_budget_bytes = budget;
    options.daemon = folder_.daemon();
    if (!folder_.has_daemon()) options.nvme_paths = {folder_.path()};
    options.threads = 1;
    return options;
  }
  OffloadOptions Third() const { return Bytes(kModelBytes / 3); }

  void Make(const OffloadOptions& options) {
    auto made = Offload::Create(*model_, options);
    ASSERT_TRUE(made.ok()) << made.status();
    offload_ = *std::move(made);
  }
  void ExpectValues() const {
    const c10::NoGradGuard guard;
    EXPECT_TRUE(model_->forward(tokens_).equal(answer_));
    const std::vector<at::Tensor> parameters = model_->parameters();
    ASSERT_EQ(parameters.size(), values_.size());
    for (size_t i = 0; i < values_.size(); ++i) {
      EXPECT_TRUE(parameters[i].equal(values_[i])) << i;
    }
  }
  // In ordinary memory: each has an address.
  void ExpectInMemory() const {
    for (const at::Tensor& each : model_->parameters()) {
      EXPECT_NE(each.const_data_ptr(), nullptr);
    }
    ExpectValues();
  }

  mutable TiedModel model_{nullptr};
  std::vector<at::Tensor> values_;  // as made
  at::Tensor tokens_, answer_;
  OffloadFolder folder_;
  std::unique_ptr<Offload> offload_;
};

}  // namespace terrace
