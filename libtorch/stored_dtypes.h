// What LibTorch calls the element types of a checkpoint's tensors. Pure
// functions.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "terrace/stored_dtype.h"

namespace terrace {

// Nothing: safetensors has no such dtype.
std::optional<StoredDType> StoredDTypeOf(at::ScalarType type);

at::ScalarType ScalarTypeOf(StoredDType dtype);

}  // namespace terrace
