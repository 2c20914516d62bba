#include "daemon/wire/default_socket.h"

#include <unistd.h>

#include <cstdlib>

namespace terrace {

std::string DefaultSocket() {
  if (geteuid() == 0) return kSystemSocket;
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime == nullptr || runtime[0] != '/') return "";
  return std::string(runtime) + "/terrace/control.sock";
}

}  // namespace terrace
