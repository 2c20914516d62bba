#include "daemon/server/session.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

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
  absl::StatusOr<std::vector<std::byte>> bytes = Encode(envelope);
  if (!bytes.ok()) return Refuse(envelope.sequence, bytes.status());
  TERRACE_CHECK(!unread_.has_value());  // it is not asked for more meanwhile
  TERRACE_ASSIGN_OR_RETURN(const bool sent, socket_.Send(*bytes));
  if (!sent) unread_ = *std::move(bytes);
  return absl::OkStatus();
}

absl::Status Session::Refuse(uint64_t sequence, absl::Status why) {
  return Answer({.sequence = sequence, .body = Refusal{std::move(why)}});
}

absl::Status Session::Flush() {
  if (!unread_.has_value()) return absl::OkStatus();
  TERRACE_ASSIGN_OR_RETURN(const bool sent, socket_.Send(*unread_));
  if (sent) unread_.reset();
  return absl::OkStatus();
}

}  // namespace terrace
