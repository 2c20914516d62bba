// The names of a checkpoint's files beside its checkpoint.json.
//
// Thread-safe.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace terrace {

// A name that no other file has.
std::string NewCheckpointFileName(absl::string_view kind);
// Whether one could have been made by the above: nothing else is ours to open
// or remove.
bool IsCheckpointFileName(absl::string_view name);

}  // namespace terrace
