// Messages of any length, both ways over one connection. What the peer does not
// read yet is kept until it does; nothing blocks.
//
//   channel.Send(envelope);
//   poll(channel.descriptor(), POLLIN | (channel.has_unsent() ? POLLOUT : 0));
//   channel.Flush();
//   while (auto message = channel.Receive()) ...
//
// A channel belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/wire/envelope.h"
#include "daemon/wire/fragments.h"
#include "daemon/wire/packet_socket.h"

namespace terrace {

class MessageChannel {
 public:
  // `sender`: who alone may write here, as a daemon has it; none: the other end
  // is the daemon.
  MessageChannel(PacketSocket socket, std::optional<Peer> sender)
      : socket_(std::move(socket)),
        sender_(sender),
        reader_(sender.has_value() ? WireReader::kDaemon
                                   : WireReader::kClient) {}

  // Unavailable: the peer is gone. ResourceExhausted: a message that is too
  // long; nothing of it is sent.
  absl::Status Send(const Envelope& envelope);
  absl::Status Flush();
  bool has_unsent() const { return !unsent_.empty(); }
  // So much is unsent that more had better wait.
  bool is_full() const { return unsent_bytes_ > kMostUnsentBytes; }

  // None: nothing that is whole is there now. Errors end the connection: those
  // of PacketSocket::Receive and FragmentReader; PermissionDenied: a packet of
  // another process.
  absl::StatusOr<std::optional<Envelope>> Receive();

  // For poll(2) alone.
  int descriptor() const { return socket_.descriptor(); }

 private:
  static constexpr size_t kMostUnsentBytes = 1 << 20;

  PacketSocket socket_;
  const std::optional<Peer> sender_;
  FragmentReader reader_;
  std::deque<std::vector<std::byte>> unsent_;
  size_t unsent_bytes_ = 0;
};

}  // namespace terrace
