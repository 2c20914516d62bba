// The names that a save gives to files beside checkpoint.json: each is one that
// no other file has, and nothing else is ours to open or remove.
//
// Thread-safe.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace terrace {

// A file of tensors: "<kind>-<id>.safetensors".
std::string NewCheckpointFileName(absl::string_view kind);
bool IsCheckpointFileName(absl::string_view name);

// What is going to be checkpoint.json: "checkpoint-<id>.json".
std::string NewManifestName();

// Of either kind.
bool IsSaveFileName(absl::string_view name);

// A list of such files: "checkpoint-<id>.lock".
std::string NewFileListName();
bool IsFileListName(absl::string_view name);

}  // namespace terrace
