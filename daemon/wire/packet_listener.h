// Where processes of this host connect to its daemon: a Unix socket of
// sequenced packets in the file system, of mode 0660 at most.
//
// One that the daemon makes has a lock beside it (PATH.lock), which the kernel
// gives back with the process: the path is taken from a daemon that is gone,
// and never from one that is there. One that a service manager made for the
// daemon stays when it ends.
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
  // FailedPrecondition: another process has the path, or something there is no
  // socket; PermissionDenied, NotFound, ResourceExhausted, as the system has
  // it; each names the path.
  static absl::StatusOr<PacketListener> Make(const ListenOptions& options);
  // InvalidArgument: the descriptor, which is closed then, is no such socket,
  // or does not listen.
  static absl::StatusOr<PacketListener> Inherit(OwnDescriptor descriptor);
  // Removes the path of one that was made.
  ~PacketListener();
  PacketListener(PacketListener&&) = default;
  PacketListener& operator=(PacketListener&&) = delete;

  // Nothing: nobody waits to be connected. ResourceExhausted: there is no
  // descriptor to be had for who does.
  absl::StatusOr<std::optional<PacketSocket>> Accept();

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
