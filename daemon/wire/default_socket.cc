#include "daemon/wire/default_socket.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "tiers/system_error.h"

namespace terrace {

std::string DefaultSocket(const char* runtime_folder) {
  if (geteuid() == 0) return kSystemSocket;
  if (runtime_folder == nullptr || runtime_folder[0] != '/') return "";
  return std::string(runtime_folder) + "/terrace/control.sock";
}

absl::Status MakeFolderOf(const std::string& default_socket) {
  const std::string folder =
      default_socket.substr(0, default_socket.find_last_of('/'));
  // Of root's daemon others are to reach the socket, which has a mode itself.
  const mode_t mode = geteuid() == 0 ? 0755 : 0700;
  if (mkdir(folder.c_str(), mode) == 0 || errno == EEXIST) {
    return absl::OkStatus();
  }
  return ErrnoError(folder, "cannot be made", errno);
}

}  // namespace terrace
