// Where a daemon listens and is looked for, unless it is said.
//
// Thread-safe.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace terrace {

// The system's daemon's.
inline constexpr char kSystemSocket[] = "/run/terrace/control.sock";

// kSystemSocket for root; for another user terrace/control.sock in the folder
// that XDG_RUNTIME_DIR names. `runtime_folder`: its value; null: it has none,
// and then "".
std::string DefaultSocket(const char* runtime_folder);

// Makes the last folder of the path to such a socket, if it is not there.
absl::Status MakeFolderOf(const std::string& default_socket);

}  // namespace terrace
