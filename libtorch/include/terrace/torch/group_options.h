// The options of a LibTorch parameter group as Terrace's and back. LibTorch's
// own types are the groups', so that programs and archives of
// torch::optim::AdamW and Adam go on unchanged. Pure functions.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "terrace/adam.h"

namespace terrace {

enum class AdamMode : uint8_t {
  kAdam,   // torch::optim::AdamOptions: decay is added to the gradient
  kAdamW,  // torch::optim::AdamWOptions: decay apart from it
};

std::unique_ptr<::torch::optim::OptimizerOptions> MakeGroupOptions(
    AdamMode mode, const AdamOptions& options);

// InvalidArgument: options of another type, or amsgrad, which is not built.
absl::StatusOr<AdamOptions> ReadGroupOptions(
    AdamMode mode, const ::torch::optim::OptimizerOptions& options);

}  // namespace terrace
