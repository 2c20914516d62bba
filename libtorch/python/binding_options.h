// What the package asks an optimizer or an offloaded model to be, and of a step
// the numbers of torch's parameter groups.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "libtorch/offload/place_options.h"
#include "terrace/optimizer.h"

namespace terrace {

// 0 chunk bytes: the library's default.
struct BindingOptions : PlaceOptions {
  int64_t chunk_bytes = 0;
  double max_gradient_norm = 0;
  bool skip_nonfinite = false;
  bool bias_correction = true;
};

// From a JSON object with the names of BindingOptions, all of them optional;
// engine is "auto", "io_uring" or "threads", mapped_tiers are texts.
// InvalidArgument: anything else.
absl::StatusOr<BindingOptions> ReadBindingOptions(const std::string& json);

// In place of a parameter's group: it is not stepped.
inline constexpr int64_t kInNoGroup = -1;

// The group of each parameter, kInNoGroup of one that is in none.
// InvalidArgument: not as many int64 in CPU memory.
absl::StatusOr<absl::Span<const int64_t>> GroupsIn(const at::Tensor& group_of,
                                                   size_t parameters);

// What each parameter is stepped with: the numbers of its group, of which there
// are seven a group (learning rate, both betas, epsilon, weight decay; 1 or 0:
// whether the decay is decoupled, and whether the objective is maximized).
// InvalidArgument: a group without numbers.
absl::StatusOr<std::vector<AdamOptions>> AdamOfEach(
    absl::Span<const int64_t> group_of, const std::vector<double>& numbers,
    const BindingOptions& options);

}  // namespace terrace
