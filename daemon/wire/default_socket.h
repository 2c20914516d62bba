// Where a daemon listens and is looked for, unless it is said.
#pragma once

#include <string>

namespace terrace {

// "/run/terrace/control.sock" for root; for another user
// "$XDG_RUNTIME_DIR/terrace/control.sock", if there is one. "": nowhere.
std::string DefaultSocket();
// The same for the system's daemon.
inline constexpr char kSystemSocket[] = "/run/terrace/control.sock";

}  // namespace terrace
