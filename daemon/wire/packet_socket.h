// One end of a connection to a host's daemon: a Unix socket of sequenced
// packets. A packet arrives whole, with the kernel's word for who sent it, or
// the connection ends. Descriptors are never taken, but for those that a
// process waits for which asks a daemon for memory.
//
//   auto socket = PacketSocket::Connect("/run/terrace/control.sock", deadline);
//   auto sent = socket->Send(bytes);        // false: the peer does not read
//   auto packet = socket->Await(deadline);
//
// Any thread sends, and one at a time receives. Nothing blocks but Connect and
// Await, whose deadlines are SystemClock()'s (base/clock.h).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/process.h"
#include "daemon/wire/envelope.h"

namespace terrace {

// A process as the kernel names it: with its effective user where it connected,
// and its real one beside each packet, which differ in a set-uid program; the
// pid is 0 where the process is of no namespace that is seen here.
struct Peer {
  uid_t uid = 0;
  gid_t gid = 0;
  pid_t pid = 0;

  friend bool operator==(const Peer&, const Peer&) = default;
};

struct Packet {
  std::vector<std::byte> bytes;
  Peer sender;
  // Beside it, where they are taken: kMostDescriptors at most.
  std::vector<OwnDescriptor> descriptors;
};

enum class Descriptors : uint8_t { kRefused, kTaken };

class PacketSocket {
 public:
  static constexpr size_t kMostDescriptors = 3;

  // Waits while the daemon's queue of those who connect is full. NotFound:
  // there is no socket, or nobody listens; PermissionDenied: this user may not;
  // DeadlineExceeded; each names the path. InvalidArgument: a path that is too
  // long for a socket.
  static absl::StatusOr<PacketSocket> Connect(
      const std::string& path, absl::Time deadline,
      Descriptors descriptors = Descriptors::kRefused);
  // A connected one, which becomes non-blocking and asks for the names of
  // senders; `name` is what errors call it.
  static absl::StatusOr<PacketSocket> Of(
      OwnDescriptor descriptor, std::string name,
      Descriptors descriptors = Descriptors::kRefused);

  // Who connected, as the kernel had it at connect(): Unavailable where the
  // kernel does not say.
  absl::StatusOr<Peer> peer() const;
  // Whether that group was one of its, then; false where the kernel does not
  // say (before Linux 4.13).
  bool IsPeerOf(gid_t group) const;

  // All of it in one packet: false where the peer does not read now.
  // Unavailable: the peer is gone.
  absl::StatusOr<bool> Send(absl::Span<const std::byte> bytes);
  // The same, with as many descriptors beside it as are taken, which the sender
  // keeps too.
  absl::StatusOr<bool> SendWith(
      absl::Span<const std::byte> bytes,
      absl::Span<const OwnDescriptor* const> descriptors);
  // Nothing: no packet is there now. Unavailable: the peer is gone.
  // InvalidArgument: a packet of more than `most_bytes`, one without a sender,
  // or one with descriptors, which do not become this process's; the connection
  // is to end.
  absl::StatusOr<std::optional<Packet>> Receive(
      size_t most_bytes = kMostPacketBytes);
  // Receive, until there is one; DeadlineExceeded.
  absl::StatusOr<Packet> Await(absl::Time deadline);
  // No descriptor is taken from here on.
  void RefuseMore();

  const std::string& name() const { return name_; }
  // For poll(2) and epoll(7) alone.
  int descriptor() const { return descriptor_.get(); }

 private:
  PacketSocket(OwnDescriptor descriptor, std::string name,
               Descriptors descriptors)
      : descriptor_(std::move(descriptor)),
        name_(std::move(name)),
        descriptors_(descriptors) {}

  absl::Status Gone() const;
  absl::StatusOr<bool> Sent(ssize_t result) const;

  OwnDescriptor descriptor_;
  std::string name_;
  Descriptors descriptors_;
};

// "uid 1000, pid 4711".
std::string PeerText(const Peer& peer);

}  // namespace terrace
