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
#include "base/system/file_lock.h"
#include "daemon/wire/socket_address.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

constexpr int kQueue = 128;  // who waits to be connected
constexpr mode_t kOwnersMode = 0600;
constexpr mode_t kGroupsMode = 0660;

absl::StatusOr<OwnDescriptor> TakeLock(const std::string& path) {
  const std::string name = path + ".lock";
  OwnDescriptor lock = OwnDescriptor::Open(
      name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kOwnersMode);
  if (!lock.ok()) return ErrnoError(name, "cannot be made", errno);
  if (TryLock(lock.get())) return lock;
  if (errno != EWOULDBLOCK) return ErrnoError(name, "cannot be locked", errno);
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": another daemon listens there"));
}

// Whether somebody listens there: who does may be any program, and of another
// kind of socket.
bool IsListenedTo(const SocketAddress& address) {
  const OwnDescriptor probe = MakePacketSocket(/*blocks=*/false);
  return connect(probe.get(), address.get(), address.size()) == 0 ||
         (errno != ECONNREFUSED && errno != ENOENT);
}

// What a daemon that is gone has left. Whoever has the lock may do so.
absl::Status RemoveStale(const std::string& path,
                         const SocketAddress& address) {
  struct stat found = {};
  if (lstat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return ErrnoError(path, "cannot be looked at", errno);
  }
  if (!S_ISSOCK(found.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": it is there, and no socket"));
  }
  if (IsListenedTo(address)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": another process listens there"));
  }
  if (unlink(path.c_str()) == 0) return absl::OkStatus();
  return ErrnoError(path, "cannot be removed", errno);
}

// Those that are accepted inherit it. Set later, it would be missing from what
// is sent meanwhile.
bool AskForSenders(int fd) {
  const int on = 1;
  return setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0;
}

// What bind(2) makes has this mode, whatever the process's mask is.
bool BindAs(int fd, const SocketAddress& address, mode_t mode) {
  const mode_t mask = umask(0);
  const bool is_bound =
      fchmod(fd, mode) == 0 && bind(fd, address.get(), address.size()) == 0;
  const int error = errno;
  umask(mask);
  errno = error;
  return is_bound;
}

// The group is given before anyone can connect, which listen(2) begins.
absl::Status Bind(int fd, const SocketAddress& address,
                  const ListenOptions& options) {
  const std::string& path = options.path;
  const mode_t mode = options.group.has_value() ? kGroupsMode : kOwnersMode;
  if (!BindAs(fd, address, mode)) {
    return ErrnoError(path, "cannot be made", errno);
  }
  const auto same = static_cast<uid_t>(-1);
  absl::Status status;
  if (options.group.has_value() &&
      lchown(path.c_str(), same, *options.group) != 0) {
    status = ErrnoError(path, "cannot be given to its group", errno);
  } else if (!AskForSenders(fd) || listen(fd, kQueue) != 0) {
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
  TERRACE_ASSIGN_OR_RETURN(OwnDescriptor lock, TakeLock(options.path));
  TERRACE_RETURN_IF_ERROR(RemoveStale(options.path, address));
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
