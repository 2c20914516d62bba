// Messages of any length, both ways over one connection: in rings of memory
// that both sides have, beside a socket by which each hears that the other one
// is gone, and rings for it while it rests. What the peer does not read yet is
// kept until it does; nothing blocks.
//
//   channel.Send(envelope);
//   if (channel.RestForNews() && channel.RestForRoom()) {
//     poll(channel.descriptor(), POLLIN);
//   }
//   channel.StirForNews();
//   absl::Status there = channel.HearBells();
//   channel.Flush();
//   while (*channel.Receive(&message)) ...
//
// One thread at a time has the side that sends, and one that which receives:
// they may be two.
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
#include "daemon/wire/ring/packet_ring.h"

namespace terrace {

class MessageChannel {
 public:
  // `sender`: who alone may ring here, as a daemon has it; none: the other end
  // is the daemon. The rings outlive the channel.
  MessageChannel(PacketSocket socket, std::optional<Peer> sender, RingView out,
                 RingView in)
      : socket_(std::move(socket)),
        sender_(sender),
        writer_(out),
        ring_reader_(in),
        reader_(sender.has_value() ? WireReader::kDaemon
                                   : WireReader::kClient) {}

  // ResourceExhausted: a message that is too long; nothing of it is sent.
  // InvalidArgument: RingWriter's. That the peer is gone HearBells tells alone.
  absl::Status Send(const Envelope& envelope);
  absl::Status Flush();
  bool has_unsent() const { return !unsent_.empty(); }
  // So much is unsent that more had better wait.
  bool is_full() const { return unsent_bytes_ > kMostUnsentBytes; }
  // The peer rings once there is room for what is unsent. False: there is some.
  bool RestForRoom();

  // The next message. False: none that is whole is there now. Errors end the
  // connection: those of RingReader and FragmentReader.
  absl::StatusOr<bool> Receive(Envelope* message);
  // What the peer sends from here on is not received.
  void EndReceiving() { ring_reader_.End(); }
  // Until StirForNews, the peer rings for what it sends. False: there is
  // something.
  bool RestForNews() { return ring_reader_.Rest(); }
  void StirForNews() { ring_reader_.Stir(); }
  bool HasNews() const { return ring_reader_.HasMore(); }
  // Takes what the peer has rung. Unavailable: it is gone, though what it sent
  // before may still be received. Other errors end the connection:
  // PermissionDenied, another process has rung; InvalidArgument, what came is
  // no bell.
  absl::Status HearBells();

  // For poll(2) alone.
  int descriptor() const { return socket_.descriptor(); }

 private:
  static constexpr size_t kMostUnsentBytes = 1 << 20;

  void Ring();

  PacketSocket socket_;
  const std::optional<Peer> sender_;
  // Of who sends.
  EnvelopeWriter encoded_;
  RingWriter writer_;
  std::deque<std::vector<std::byte>> unsent_;
  size_t unsent_bytes_ = 0;
  // Of who receives.
  RingReader ring_reader_;
  std::vector<std::byte> packet_;  // the last one that was read
  FragmentReader reader_;
};

}  // namespace terrace
