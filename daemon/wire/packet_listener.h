// Where processes of this host connect to its daemon: a Unix socket of
// sequenced packets in the file system, of mode 0660 at most.
//
// One that the daemon makes has a lock beside it (PATH.lock), which the kernel
// gives back with the process, and the path is taken where nobody listens any
// more alone. One that a service manager made for the daemon stays when it
// ends.
//
// A listener belongs to one thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/process.h"
#include "daemon/wire/packet_socket.h"

namespace terrace {

struct ListenOptions {
  std::string path;
  // Who may connect beside the daemon's own user; none: nobody.
  std::optional<gid_t> group;
};

class PacketListener {
 public:
  // One that is killed and not gone yet, as a disk holds it up, is waited for,
  // 30 s at most. FailedPrecondition: another process listens at the path or
  // has its lock, or something there is no socket; PermissionDenied, NotFound,
  // ResourceExhausted, as the system has it; each names the path.
  static absl::StatusOr<PacketListener> Make(const ListenOptions& options);
  // InvalidArgument: the descriptor, which is closed then, is no such socket,
  // does not listen, has no path, or lets everybody connect.
  static absl::StatusOr<PacketListener> Inherit(OwnDescriptor descriptor);
  // Stops; the lock ends with the object.
  ~PacketListener();
  PacketListener(PacketListener&&) = default;
  PacketListener& operator=(PacketListener&&) = delete;

  // Nothing: nobody waits to be connected. ResourceExhausted: there is no
  // descriptor to be had for who does.
  absl::StatusOr<std::optional<PacketSocket>> Accept();

  // Nobody can connect any more; the path of one that was made is removed. Its
  // lock stays, so that what the daemon has is not another's yet.
  void Stop();

  const std::string& path() const { return path_; }
  // For poll(2) and epoll(7) alone.
  int descriptor() const { return descriptor_.get(); }

 private:
  PacketListener(OwnDescriptor descriptor, std::string path, OwnDescriptor lock)
      : descriptor_(std::move(descriptor)),
        path_(std::move(path)),
        lock_(std::move(lock)) {}

  OwnDescriptor descriptor_;
  std::string path_;
  OwnDescriptor lock_;  // of one that was made
};

}  // namespace terrace
