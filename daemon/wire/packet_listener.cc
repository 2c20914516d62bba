#include "daemon/wire/packet_listener.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/wire/socket_address.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

constexpr int kQueue = 128;  // who waits to be connected

// Those that are accepted inherit it. Set later, it would be missing from what
// is sent meanwhile.
bool AskForSenders(int fd) {
  const int on = 1;
  return setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0;
}

absl::Status Bind(int fd, const SocketAddress& address,
                  const ListenOptions& options) {
  const std::string& path = options.path;
  TERRACE_RETURN_IF_ERROR(BindToPath(fd, path, address, options.group));
  absl::Status status;
  if (!AskForSenders(fd) || listen(fd, kQueue) != 0) {
    status = ErrnoError(path, "cannot listen", errno);
  }
  RefuseDescriptors(fd);
  if (!status.ok()) unlink(path.c_str());
  return status;
}

int OptionOf(int fd, int option) {
  int value = -1;
  socklen_t size = sizeof(value);
  if (getsockopt(fd, SOL_SOCKET, option, &value, &size) != 0) return -1;
  return value;
}

std::string PathOf(int fd) {
  sockaddr_un address = {};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return "";
  }
  const size_t length = size - offsetof(sockaddr_un, sun_path);
  return {address.sun_path, strnlen(address.sun_path, length)};
}

// What a service manager made is its configuration's matter, but not for
// everybody.
absl::Status CheckMode(const std::string& path) {
  if (path.empty()) {
    return absl::InvalidArgumentError(
        "a socket that the daemon was started with has no path");
  }
  struct stat found = {};
  if (lstat(path.c_str(), &found) != 0) {
    return ErrnoError(path, "cannot be looked at", errno);
  }
  if ((found.st_mode & S_IRWXO) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": everybody may connect; its mode is to be 0660 at most"));
}

}  // namespace

absl::StatusOr<PacketListener> PacketListener::Make(
    const ListenOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(const SocketAddress address,
                           SocketAddress::Of(options.path));
  TERRACE_ASSIGN_OR_RETURN(OwnDescriptor lock,
                           TakeSocketPath(options.path, address));
  OwnDescriptor descriptor = MakePacketSocket(/*blocks=*/false);
  if (!descriptor.ok()) {
    return ErrnoError(options.path, "cannot make a socket", errno);
  }
  TERRACE_RETURN_IF_ERROR(Bind(descriptor.get(), address, options));
  return PacketListener(std::move(descriptor), options.path, std::move(lock));
}

absl::StatusOr<PacketListener> PacketListener::Inherit(
    OwnDescriptor descriptor) {
  const int fd = descriptor.get();
  const bool is_right = OptionOf(fd, SO_DOMAIN) == AF_UNIX &&
                        OptionOf(fd, SO_TYPE) == SOCK_SEQPACKET &&
                        OptionOf(fd, SO_ACCEPTCONN) == 1;
  if (!is_right) {
    return absl::InvalidArgumentError(
        absl::StrCat("the descriptor ", fd,
                     ", which the daemon was started with, is no Unix socket "
                     "of sequenced packets that listens"));
  }
  const std::string path = PathOf(fd);
  TERRACE_RETURN_IF_ERROR(CheckMode(path));
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
      fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 || !AskForSenders(fd)) {
    return ErrnoError("a socket that listens", "cannot be set up", errno);
  }
  RefuseDescriptors(fd);
  return PacketListener(std::move(descriptor), path, OwnDescriptor());
}

PacketListener::~PacketListener() { Stop(); }

void PacketListener::Stop() {
  if (!descriptor_.ok()) return;
  descriptor_.Close();
  if (lock_.ok()) unlink(path_.c_str());
}

absl::StatusOr<std::optional<PacketSocket>> PacketListener::Accept() {
  OwnDescriptor accepted;
  int error = 0;
  {
    const ForkPause pause;
    const int fd =
        accept4(descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    error = errno;
    if (fd >= 0) accepted = OwnDescriptor::Of(fd);
  }
  if (accepted.ok()) return PacketSocket::Of(std::move(accepted), path_);
  const bool is_nobody = error == EAGAIN || error == EINTR ||
                         error == ECONNABORTED;  // it has gone meanwhile
  if (is_nobody) return std::nullopt;
  return ErrnoError(path_, "cannot accept", error);
}

}  // namespace terrace
