// Turns the options of a LibTorch parameter group into Terrace's and back.
// Groups have LibTorch's own types, so that programs and archives of
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
  kAdamW,  // torch::optim::AdamWOptions: decay is apart from the gradient
};

std::unique_ptr<::torch::optim::OptimizerOptions> MakeGroupOptions(
    AdamMode mode, const AdamOptions& options);

// Returns InvalidArgument for options of another type, and for amsgrad, which
// is not built.
absl::StatusOr<AdamOptions> ReadGroupOptions(
    AdamMode mode, const ::torch::optim::OptimizerOptions& options);

}  // namespace terrace
