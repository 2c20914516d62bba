#include "daemon/wire/message_channel.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

constexpr std::array<std::byte, 1> kBell = {std::byte{1}};
// Of one turn: more are heard in the next.
constexpr int kMostBells = 16;

}  // namespace

absl::Status MessageChannel::Send(const Envelope& envelope) {
  TERRACE_ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes,
                           encoded_.Encode(envelope, kMostMessageBytes));
  if (unsent_.empty() && bytes.size() <= kMostPacketBytes) {
    TERRACE_ASSIGN_OR_RETURN(const bool written, writer_.Write(bytes));
    if (written) {
      if (writer_.WakeReader()) Ring();
      return absl::OkStatus();
    }
  }
  TERRACE_ASSIGN_OR_RETURN(std::vector<std::vector<std::byte>> packets,
                           PacketsOf(bytes, envelope.sequence));
  for (std::vector<std::byte>& packet : packets) {
    unsent_bytes_ += packet.size();
    unsent_.push_back(std::move(packet));
  }
  return Flush();
}

absl::Status MessageChannel::Flush() {
  bool has_written = false;
  while (!unsent_.empty()) {
    TERRACE_ASSIGN_OR_RETURN(const bool written,
                             writer_.Write(unsent_.front()));
    if (!written) break;
    has_written = true;
    unsent_bytes_ -= unsent_.front().size();
    unsent_.pop_front();
  }
  if (has_written && writer_.WakeReader()) Ring();
  return absl::OkStatus();
}

bool MessageChannel::RestForRoom() {
  return unsent_.empty() || writer_.AwaitRoom(unsent_.front().size());
}

absl::StatusOr<bool> MessageChannel::Receive(Envelope* message) {
  while (true) {
    TERRACE_ASSIGN_OR_RETURN(const bool has_read, ring_reader_.Read(&packet_));
    if (!has_read) return false;
    if (ring_reader_.WakeWriter()) Ring();
    TERRACE_ASSIGN_OR_RETURN(const bool is_whole,
                             reader_.Add(packet_, message));
    if (is_whole) return true;
  }
}

// A peer whose socket has no room for one more has not heard those before, and
// one that is gone is heard of by its bells' end.
void MessageChannel::Ring() { socket_.Send(kBell).IgnoreError(); }

absl::Status MessageChannel::HearBells() {
  for (int i = 0; i < kMostBells; ++i) {
    TERRACE_ASSIGN_OR_RETURN(const std::optional<Packet> bell,
                             socket_.Receive(kBell.size()));
    if (!bell.has_value()) break;
    const Peer& from = bell->sender;
    if (sender_.has_value() &&
        (from.uid != sender_->uid || from.pid != sender_->pid)) {
      return absl::PermissionDeniedError(
          absl::StrCat("a message of ", PeerText(from), " on a connection of ",
                       PeerText(*sender_)));
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace
