#include "examples/train_gpt/gpt.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "absl/strings/str_cat.h"

namespace train_gpt {
namespace {

constexpr double kDeviation = 0.02;

at::ScalarType ScalarTypeOf(Dtype dtype) {
  return dtype == Dtype::kFloat32 ? at::kFloat : at::kBFloat16;
}

}  // namespace

Gpt::Gpt(const ModelShape& shape, Dtype dtype, uint64_t seed)
    : shape_(shape), dtype_(ScalarTypeOf(dtype)) {
  at::manual_seed(seed);
  const int64_t w = shape.width;
  const double residual = kDeviation / std::sqrt(2.0 * shape.layers);
  embedding_ = Add("embedding", {shape.vocab, w}, kDeviation, 0);
  positions_ = Add("positions", {shape.context, w}, kDeviation, 0);
  for (int64_t i = 0; i < shape.layers; ++i) {
    const std::string name = absl::StrCat("block", i, ".");
    Block block;
    block.attention_norm = AddNorm(name + "attention_norm");
    block.query_key_value =
        AddLinear(name + "query_key_value", w, 3 * w, kDeviation);
    block.attention_out = AddLinear(name + "attention_out", w, w, residual);
    block.perceptron_norm = AddNorm(name + "perceptron_norm");
    block.perceptron_in =
        AddLinear(name + "perceptron_in", w, 4 * w, kDeviation);
    block.perceptron_out =
        AddLinear(name + "perceptron_out", 4 * w, w, residual);
    blocks_.push_back(block);
  }
  last_norm_ = AddNorm("last_norm");
}

at::Tensor Gpt::Loss(const at::Tensor& tokens) const {
  const int64_t seq = tokens.size(1) - 1;
  const at::Tensor input = tokens.narrow(1, 0, seq);
  const at::Tensor target = tokens.narrow(1, 1, seq);
  at::Tensor x = at::embedding(embedding_, input) +
                 positions_.narrow(0, 0, seq).unsqueeze(0);
  for (const Block& block : blocks_) {
    x = x + Attend(block, ApplyNorm(block.attention_norm, x));
    const at::Tensor inner = at::gelu(
        at::linear(ApplyNorm(block.perceptron_norm, x),
                   block.perceptron_in.weight, block.perceptron_in.bias),
        "tanh");
    x = x + at::linear(inner, block.perceptron_out.weight,
                       block.perceptron_out.bias);
  }
  const at::Tensor logits = at::linear(ApplyNorm(last_norm_, x), embedding_);
  return at::cross_entropy_loss(
      logits.to(at::kFloat).reshape({-1, shape_.vocab}), target.reshape({-1}));
}

void Gpt::ForgetGradients() {
  for (const Parameter& parameter : parameters_) {
    parameter.tensor.mutable_grad().reset();
  }
}

at::Tensor Gpt::Add(const std::string& name, std::vector<int64_t> sizes,
                    double deviation, double constant) {
  at::NoGradGuard no_grad;
  at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(dtype_));
  if (deviation > 0) {
    tensor.normal_(0, deviation);
  } else {
    tensor.fill_(constant);
  }
  tensor.requires_grad_(true);
  parameters_.push_back({name, tensor});
  return tensor;
}

Gpt::Norm Gpt::AddNorm(const std::string& name) {
  Norm norm;
  norm.weight = Add(name + ".weight", {shape_.width}, 0, 1);
  norm.bias = Add(name + ".bias", {shape_.width}, 0, 0);
  return norm;
}

Gpt::Linear Gpt::AddLinear(const std::string& name, int64_t in, int64_t out,
                           double deviation) {
  Linear linear;
  linear.weight = Add(name + ".weight", {out, in}, deviation, 0);
  linear.bias = Add(name + ".bias", {out}, 0, 0);
  return linear;
}

at::Tensor Gpt::ApplyNorm(const Norm& norm, const at::Tensor& x) const {
  return at::layer_norm(x, {shape_.width}, norm.weight, norm.bias);
}

at::Tensor Gpt::Attend(const Block& block, const at::Tensor& x) const {
  const int64_t rows = x.size(0), seq = x.size(1);
  const int64_t head_width = shape_.width / shape_.heads;
  const at::Tensor all =
      at::linear(x, block.query_key_value.weight, block.query_key_value.bias);
  const auto heads = [&](int64_t which) {
    return all.narrow(2, which * shape_.width, shape_.width)
        .view({rows, seq, shape_.heads, head_width})
        .transpose(1, 2);
  };
  const at::Tensor mixed = at::scaled_dot_product_attention(
      heads(0), heads(1), heads(2), /*attn_mask=*/{}, /*dropout_p=*/0.0,
      /*is_causal=*/true);
  return at::linear(mixed.transpose(1, 2).reshape({rows, seq, shape_.width}),
                    block.attention_out.weight, block.attention_out.bias);
}

}  // namespace train_gpt
