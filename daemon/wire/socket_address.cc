#include "daemon/wire/socket_address.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/system/file_lock.h"
#include "tiers/system_error.h"

namespace terrace {

absl::StatusOr<SocketAddress> SocketAddress::Of(const std::string& path) {
  SocketAddress made;
  made.address_.sun_family = AF_UNIX;
  // The last byte stays zero. A name that begins with zero is none of a file.
  const size_t most = sizeof(made.address_.sun_path) - 1;
  if (path.empty() || path.size() > most || path.find('\0') != path.npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", path, "': the path of a socket has 1 to ", most, " bytes"));
  }
  std::memcpy(made.address_.sun_path, path.data(), path.size());
  return made;
}

OwnDescriptor MakePacketSocket(bool blocks) {
  const ForkPause pause;
  const int kind = SOCK_SEQPACKET | SOCK_CLOEXEC | (blocks ? 0 : SOCK_NONBLOCK);
  const int fd = socket(AF_UNIX, kind, 0);
  return fd < 0 ? OwnDescriptor() : OwnDescriptor::Of(fd);
}

void RefuseDescriptors(int fd) {
  constexpr int kPassRights = 83;  // SO_PASSRIGHTS, which headers may lack
  const int off = 0;
  setsockopt(fd, SOL_SOCKET, kPassRights, &off, sizeof(off));
}

namespace {

constexpr mode_t kOwnersMode = 0600;
constexpr mode_t kGroupsMode = 0660;

absl::StatusOr<OwnDescriptor> TakeLock(const std::string& path) {
  const std::string name = path + ".lock";
  OwnDescriptor lock = OwnDescriptor::Open(
      name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kOwnersMode);
  if (!lock.ok()) return ErrnoError(name, "cannot be made", errno);
  if (LockOnceEnded(lock.get())) return lock;
  if (errno != EWOULDBLOCK) return ErrnoError(name, "cannot be locked", errno);
  const pid_t holder = LockHolder(lock.get());
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": another daemon listens there",
                   holder > 0 ? absl::StrCat(", process ", holder) : ""));
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

}  // namespace

absl::StatusOr<OwnDescriptor> TakeSocketPath(const std::string& path,
                                             const SocketAddress& address) {
  TERRACE_ASSIGN_OR_RETURN(OwnDescriptor lock, TakeLock(path));
  TERRACE_RETURN_IF_ERROR(RemoveStale(path, address));
  return lock;
}

absl::Status BindToPath(int fd, const std::string& path,
                        const SocketAddress& address,
                        std::optional<gid_t> group) {
  if (!BindAs(fd, address, group.has_value() ? kGroupsMode : kOwnersMode)) {
    return ErrnoError(path, "cannot be made", errno);
  }
  const auto same = static_cast<uid_t>(-1);
  if (!group.has_value() || lchown(path.c_str(), same, *group) == 0) {
    return absl::OkStatus();
  }
  const absl::Status status =
      ErrnoError(path, "cannot be given to its group", errno);
  unlink(path.c_str());
  return status;
}

}  // namespace terrace
