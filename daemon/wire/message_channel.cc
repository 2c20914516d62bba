#include "daemon/wire/message_channel.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace {

absl::Status MessageChannel::Send(const Envelope& envelope) {
  TERRACE_ASSIGN_OR_RETURN(std::vector<std::vector<std::byte>> packets,
                           PacketsOf(envelope));
  for (std::vector<std::byte>& packet : packets) {
    unsent_bytes_ += packet.size();
    unsent_.push_back(std::move(packet));
  }
  return Flush();
}

absl::Status MessageChannel::Flush() {
  while (!unsent_.empty()) {
    TERRACE_ASSIGN_OR_RETURN(const bool sent, socket_.Send(unsent_.front()));
    if (!sent) break;
    unsent_bytes_ -= unsent_.front().size();
    unsent_.pop_front();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Envelope>> MessageChannel::Receive() {
  while (true) {
    TERRACE_ASSIGN_OR_RETURN(const std::optional<Packet> packet,
                             socket_.Receive());
    if (!packet.has_value()) return std::nullopt;
    const Peer& from = packet->sender;
    if (sender_.has_value() &&
        (from.uid != sender_->uid || from.pid != sender_->pid)) {
      return absl::PermissionDeniedError(
          absl::StrCat("a message of ", PeerText(from), " on a connection of ",
                       PeerText(*sender_)));
    }
    TERRACE_ASSIGN_OR_RETURN(std::optional<Envelope> message,
                             reader_.Add(packet->bytes));
    if (message.has_value()) return message;
  }
}

}  // namespace terrace
