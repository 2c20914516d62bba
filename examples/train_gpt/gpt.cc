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

#include "absl/strings/match.h"

namespace train_gpt {
namespace {

constexpr double kDeviation = 0.02;

at::ScalarType ScalarTypeOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return at::kFloat;
    case Dtype::kBFloat16:
      return at::kBFloat16;
    case Dtype::kFloat16:
      return at::kHalf;
  }
  return at::kFloat;
}

// What the model computes with. 16-bit parameters are widened: products of
// 16-bit matrices turn one different last bit of a weight into a loss that
// differs by 1e-3 after ten steps, and cost twice the time where the
// processor has no matrix units for them.
at::Tensor Computed(const at::Tensor& parameter) {
  return parameter.to(at::kFloat);
}

// Matrices normal, the two that lead back into the residual stream with less;
// of the vectors the norms' weights one, the biases zero.
void Initialise(const ParameterShape& parameter, int64_t layers,
                at::Tensor& tensor) {
  const absl::string_view name = parameter.name;
  if (parameter.sizes.size() == 2) {
    const bool residual = absl::EndsWith(name, "_out.weight");
    tensor.normal_(
        0, residual ? kDeviation / std::sqrt(2.0 * layers) : kDeviation);
  } else {
    tensor.fill_(absl::EndsWith(name, ".weight") ? 1.0 : 0.0);
  }
}

}  // namespace

Gpt::Gpt(const ModelShape& shape, Dtype dtype, std::optional<uint64_t> seed,
         OnMade on_made)
    : shape_(shape) {
  if (seed.has_value()) at::manual_seed(*seed);
  for (const ParameterShape& parameter : ParameterShapes(shape)) {
    at::NoGradGuard no_grad;
    at::Tensor tensor = at::empty(
        parameter.sizes, at::TensorOptions().dtype(ScalarTypeOf(dtype)));
    if (seed.has_value()) Initialise(parameter, shape.layers, tensor);
    parameters_.push_back({parameter.name, tensor.requires_grad_(true)});
    on_made(parameters_.back());
  }
  embedding_ = Next();
  positions_ = Next();
  for (int64_t i = 0; i < shape.layers; ++i) {
    Block block;
    block.attention_norm = NextNorm();
    block.query_key_value = NextLinear();
    block.attention_out = NextLinear();
    block.perceptron_norm = NextNorm();
    block.perceptron_in = NextLinear();
    block.perceptron_out = NextLinear();
    blocks_.push_back(block);
  }
  last_norm_ = NextNorm();
}

at::Tensor Gpt::Logits(const at::Tensor& tokens) const {
  at::Tensor x = at::embedding(Computed(embedding_), tokens) +
                 Computed(positions_).narrow(0, 0, tokens.size(1)).unsqueeze(0);
  for (const Block& block : blocks_) {
    x = x + Attend(block, ApplyNorm(block.attention_norm, x));
    const at::Tensor inner =
        at::gelu(at::linear(ApplyNorm(block.perceptron_norm, x),
                            Computed(block.perceptron_in.weight),
                            Computed(block.perceptron_in.bias)),
                 "tanh");
    x = x + at::linear(inner, Computed(block.perceptron_out.weight),
                       Computed(block.perceptron_out.bias));
  }
  return at::linear(ApplyNorm(last_norm_, x), Computed(embedding_));
}

at::Tensor Gpt::Loss(const at::Tensor& tokens) const {
  const int64_t seq = tokens.size(1) - 1;
  return at::cross_entropy_loss(
      Logits(tokens.narrow(1, 0, seq)).reshape({-1, shape_.vocab}),
      tokens.narrow(1, 1, seq).reshape({-1}));
}

void Gpt::ForgetGradients() {
  for (const Parameter& parameter : parameters_) {
    parameter.tensor.mutable_grad().reset();
  }
}

const at::Tensor& Gpt::Next() { return parameters_[taken_++].tensor; }

Gpt::Norm Gpt::NextNorm() {
  Norm norm;
  norm.weight = Next();
  norm.bias = Next();
  return norm;
}

Gpt::Linear Gpt::NextLinear() {
  Linear linear;
  linear.weight = Next();
  linear.bias = Next();
  return linear;
}

at::Tensor Gpt::ApplyNorm(const Norm& norm, const at::Tensor& x) const {
  return at::layer_norm(x, {shape_.width}, Computed(norm.weight),
                        Computed(norm.bias));
}

at::Tensor Gpt::Attend(const Block& block, const at::Tensor& x) const {
  const int64_t rows = x.size(0), seq = x.size(1);
  const int64_t head_width = shape_.width / shape_.heads;
  const at::Tensor all = at::linear(x, Computed(block.query_key_value.weight),
                                    Computed(block.query_key_value.bias));
  const auto heads = [&](int64_t which) {
    return all.narrow(2, which * shape_.width, shape_.width)
        .view({rows, seq, shape_.heads, head_width})
        .transpose(1, 2);
  };
  const at::Tensor mixed = at::scaled_dot_product_attention(
      heads(0), heads(1), heads(2), /*attn_mask=*/{}, /*dropout_p=*/0.0,
      /*is_causal=*/true);
  return at::linear(mixed.transpose(1, 2).reshape({rows, seq, shape_.width}),
                    Computed(block.attention_out.weight),
                    Computed(block.attention_out.bias));
}

}  // namespace train_gpt
