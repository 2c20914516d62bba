// A GPT-2 style language model: learned positions, blocks with the norms in
// front, tanh-GELU, causal attention, an output head tied to the embedding.
// Initialised as GPT-2: normal with deviation 0.02, the two projections back
// into the residual stream divided by sqrt(2 layers), norms one, biases zero.
//
// Forward and backward are bit-deterministic for a seed and a thread count.
// One thread at a time. LibTorch's exceptions pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "examples/train_gpt/command_line/flags.h"
#include "examples/train_gpt/model_shape.h"

namespace train_gpt {

class Gpt {
 public:
  struct Parameter {
    std::string name;
    at::Tensor tensor;  // leaf on the CPU, contiguous, with its .grad
  };

  // Told of each parameter when it is made, before the next is.
  using OnMade = absl::FunctionRef<void(const Parameter&)>;

  // Without a seed the parameters' values are the caller's to fill in.
  Gpt(
      const ModelShape& shape, Dtype dtype, std::optional<uint64_t> seed,
      OnMade on_made = [](const Parameter&) {});
  Gpt(const Gpt&) = delete;
  Gpt& operator=(const Gpt&) = delete;

  // Of each next token, in fp32: [rows, seq, vocab]. `tokens`: int64, [rows,
  // seq], seq at most the context.
  at::Tensor Logits(const at::Tensor& tokens) const;
  // The mean cross-entropy of each next token: `tokens` has one more a row.
  at::Tensor Loss(const at::Tensor& tokens) const;

  // Those of ParameterShapes, in its order.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  // Drops every .grad and its memory.
  void ForgetGradients();

 private:
  struct Norm {
    at::Tensor weight, bias;
  };
  struct Linear {
    at::Tensor weight, bias;
  };
  struct Block {
    Norm attention_norm;
    Linear query_key_value, attention_out;
    Norm perceptron_norm;
    Linear perceptron_in, perceptron_out;
  };

  // The next parameters, in order.
  const at::Tensor& Next();
  Norm NextNorm();
  Linear NextLinear();
  at::Tensor ApplyNorm(const Norm& norm, const at::Tensor& x) const;
  at::Tensor Attend(const Block& block, const at::Tensor& x) const;

  const ModelShape shape_;
  std::vector<Parameter> parameters_;
  size_t taken_ = 0;  // of them, by Next
  at::Tensor embedding_, positions_;
  std::vector<Block> blocks_;
  Norm last_norm_;
};

}  // namespace train_gpt
