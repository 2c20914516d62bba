// Reads from OffloadOptions where the parameters of a model may be. A pure
// function.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "libtorch/offload/place_options.h"
#include "terrace/torch/offload.h"

namespace terrace {

// Returns the places for parameters of this many bytes. Returns InvalidArgument
// for an option that cannot be, or two that exclude each other, and
// Unimplemented for a tier of no use here. The message names them.
absl::StatusOr<PlaceOptions> PlacesOf(const OffloadOptions& options,
                                      int64_t parameter_bytes);

}  // namespace terrace
