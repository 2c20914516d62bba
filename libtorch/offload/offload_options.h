// Reads from OffloadOptions where the parameters of a model may be. A pure
// function.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "libtorch/offload/place_options.h"
#include "terrace/torch/offload.h"

namespace terrace {

struct ModelSizes {
  int64_t parameter_bytes = 0;
  c10::Device device = c10::Device(c10::kCPU);  // of all parameters
};

// Returns the places for the parameters of such a model. Returns
// InvalidArgument for an option that cannot be, or two that exclude each other,
// and Unimplemented for a tier of no use here. The message names them.
absl::StatusOr<PlaceOptions> PlacesOf(const OffloadOptions& options,
                                      const ModelSizes& sizes);

}  // namespace terrace
