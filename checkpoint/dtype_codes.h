// What safetensors calls the element types. Pure functions.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "terrace/stored_dtype.h"

namespace terrace {

// "F32", "I64", "BOOL", ...
const char* SafetensorsCode(StoredDType dtype);

// Nothing: a code that is none of them.
std::optional<StoredDType> DTypeOfSafetensors(absl::string_view code);

// All codes, for messages: "F32, BF16, ...".
std::string AllSafetensorsCodes();

}  // namespace terrace
