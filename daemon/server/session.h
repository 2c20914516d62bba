// One connection of a process to the daemon: its socket, who it is, and what it
// has not read of the last answer, which is several packets where it is long. A
// process that does not read is not served until it does; its requests wait in
// the kernel, and then its own sends do.
//
// A session belongs to the control server's thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/wire/envelope.h"
#include "daemon/wire/packet_socket.h"

namespace terrace {

class Session {
 public:
  Session(PacketSocket socket, const Peer& peer, bool is_operator)
      : socket_(std::move(socket)), peer_(peer), is_operator_(is_operator) {}

  struct Request {
    enum class Kind : uint8_t {
      kNone,     // none is there now
      kRefused,  // it is answered already
      kDue,      // its answer is
    };
    Kind kind = Kind::kNone;
    Envelope envelope;  // that is due
    absl::Status why;   // it is refused
  };

  // What is refused: a message of another process than the one that connected,
  // or one that cannot be read. Errors are Receive's: the connection is to end.
  absl::StatusOr<Request> Next();
  // An answer that is too large becomes a refusal. Unavailable: the peer is
  // gone.
  absl::Status Answer(const Envelope& envelope);
  // Sends what was not read before.
  absl::Status Flush();

  // An answer is due that comes by and by; nothing is read meanwhile.
  bool is_waiting() const { return is_waiting_; }
  void SetWaiting(bool is_waiting) { is_waiting_ = is_waiting; }

  // Of epoll(7), that it is served for next: who does not read its answer is
  // not read from, nor who waits for one. The end of either is heard all the
  // same.
  uint32_t events() const;

  bool has_unread() const { return !unread_.empty(); }
  size_t unread_bytes() const { return unread_bytes_; }
  const Peer& peer() const { return peer_; }
  bool is_operator() const { return is_operator_; }
  // Whose jobs it may see; nothing: all.
  std::optional<uid_t> sees() const {
    if (is_operator_) return std::nullopt;
    return peer_.uid;
  }
  int descriptor() const { return socket_.descriptor(); }
  // The connection goes on elsewhere.
  PacketSocket TakeSocket() && { return std::move(socket_); }

 private:
  absl::StatusOr<Envelope> Read(const Packet& packet) const;
  absl::Status Refuse(uint64_t sequence, absl::Status why);

  PacketSocket socket_;
  const Peer peer_;
  const bool is_operator_;
  std::deque<std::vector<std::byte>> unread_;  // packets
  size_t unread_bytes_ = 0;
  bool is_waiting_ = false;
};

}  // namespace terrace
