// The sizes of a GPT-2 style model and how many parameters they make. No
// LibTorch here: flags and reports need only the numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace train_gpt {

struct ModelShape {
  int64_t layers = 0;
  int64_t heads = 0;  // must divide width
  int64_t width = 0;
  int64_t vocab = 0;    // rows of the embedding, which is the output head too
  int64_t context = 0;  // rows of the learned positions
};

// tiny (3.1M parameters), mini (30M), small (124M), medium (355M) or large
// (774M); InvalidArgument names them.
absl::StatusOr<ModelShape> PresetShape(absl::string_view name);

// The head count for a width given without one: heads of 64, else of 32, else
// a single head.
int64_t DefaultHeads(int64_t width);

// Every number positive and within reason, heads divides width.
absl::Status CheckShape(const ModelShape& shape);

struct ParameterShape {
  std::string name;
  std::vector<int64_t> sizes;

  int64_t count() const;
};

// In the model's order: embedding, positions, blocks of two norms, attention
// and a fourfold perceptron, last norm; the output head is the embedding.
std::vector<ParameterShape> ParameterShapes(const ModelShape& shape);

// The elements of all of them.
int64_t ParameterCount(const ModelShape& shape);

}  // namespace train_gpt
