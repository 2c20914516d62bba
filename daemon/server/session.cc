#include "daemon/server/session.h"

#include <sys/epoll.h>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/wire/fragments.h"

namespace terrace {

absl::StatusOr<Session::Request> Session::Next() {
  TERRACE_ASSIGN_OR_RETURN(const std::optional<Packet> packet,
                           socket_.Receive());
  if (!packet.has_value()) return Request();
  absl::StatusOr<Envelope> envelope = Read(*packet);
  if (envelope.ok()) {
    return Request{.kind = Request::Kind::kDue,
                   .envelope = *std::move(envelope)};
  }
  TERRACE_RETURN_IF_ERROR(Refuse(0, envelope.status()));
  return Request{.kind = Request::Kind::kRefused, .why = envelope.status()};
}

absl::StatusOr<Envelope> Session::Read(const Packet& packet) const {
  const Peer& sender = packet.sender;
  if (sender.uid == peer_.uid && sender.pid == peer_.pid) {
    return Decode(packet.bytes, kMostPacketBytes, WireReader::kDaemon);
  }
  return absl::PermissionDeniedError(
      absl::StrCat("a control message of ", PeerText(sender),
                   " on a connection of ", PeerText(peer_)));
}

absl::Status Session::Answer(const Envelope& envelope) {
  absl::StatusOr<std::vector<std::vector<std::byte>>> packets =
      PacketsOf(envelope);
  if (!packets.ok()) return Refuse(envelope.sequence, packets.status());
  TERRACE_CHECK(unread_.empty());  // it is not asked for more meanwhile
  for (std::vector<std::byte>& packet : *packets) {
    unread_bytes_ += packet.size();
    unread_.push_back(std::move(packet));
  }
  return Flush();
}

absl::Status Session::Refuse(uint64_t sequence, absl::Status why) {
  return Answer({.sequence = sequence, .body = Refusal{std::move(why)}});
}

uint32_t Session::events() const {
  if (is_waiting_) return 0;
  return has_unread() ? EPOLLOUT : EPOLLIN;
}

absl::Status Session::Flush() {
  while (!unread_.empty()) {
    TERRACE_ASSIGN_OR_RETURN(const bool sent, socket_.Send(unread_.front()));
    if (!sent) break;
    unread_bytes_ -= unread_.front().size();
    unread_.pop_front();
  }
  return absl::OkStatus();
}

}  // namespace terrace
