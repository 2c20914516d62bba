// Where the parameters of a model may be, of what OffloadOptions say. Pure.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "libtorch/offload/place_options.h"
#include "terrace/torch/offload.h"

namespace terrace {

// For parameters of so many bytes. InvalidArgument: an option, or two that
// exclude each other; Unimplemented: a tier of no use here. Each is named.
absl::StatusOr<PlaceOptions> PlacesOf(const OffloadOptions& options,
                                      int64_t parameter_bytes);

}  // namespace terrace
