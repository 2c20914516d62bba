// infer_gpt's command line. Plain values, no LibTorch. Every mistake is one
// InvalidArgument line that names the flag and what it takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/train_gpt/command_line/flags.h"
#include "examples/train_gpt/model_shape.h"

namespace infer_gpt {

struct Flags {
  // Either random weights of this shape and type, or those of a checkpoint,
  // which has both.
  train_gpt::ModelShape shape;
  train_gpt::Dtype dtype = train_gpt::Dtype::kFloat32;
  uint64_t seed = 1;       // of the weights, and of which text
  std::string checkpoint;  // a directory of train_gpt's --save; empty: none

  std::string data;  // empty: the default corpus
  int64_t rows = 1;
  int64_t seq = 64;     // tokens a row
  int64_t passes = 4;   // each adds a token to every row
  int64_t threads = 0;  // 0: as many as the process may use

  bool in_memory = false;
  // Else at most this of the weights is in memory, and the rest on the paths.
  train_gpt::MemoryBudget budget = {.percent = train_gpt::kBudgetPercent};
  std::vector<std::string> nvme_paths;

  std::string json;  // file to write; empty: none
  bool help = false;
};

// `arguments` without the program's name. With --help the rest is not read.
absl::StatusOr<Flags> ParseFlags(absl::Span<const std::string> arguments);

// The text of --help: a line for each flag.
std::string Usage();

}  // namespace infer_gpt
