// What the package asks an optimizer or an offloaded model to be.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "libtorch/offload/place_options.h"

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

}  // namespace terrace
