// Which memory LibTorch's own CPU allocator has made, or ours in its place.
#pragma once

#include <c10/core/Allocator.h>

namespace terrace {

// Returns false for memory of others (from_blob), of mapped files, and for what
// is told of its end besides. Thread-safe.
bool IsMadeByLibTorch(const c10::DataPtr& data);

}  // namespace terrace
