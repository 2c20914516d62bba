#include "daemon/wire/fragments.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

// What a piece's envelope takes beside its bytes, and more.
constexpr size_t kFrameBytes = 256;
constexpr size_t kPieceBytes = kMostPacketBytes - kFrameBytes;
constexpr size_t kLeastPieceBytes = 4096;

}  // namespace

absl::StatusOr<std::vector<std::vector<std::byte>>> PacketsOf(
    const Envelope& envelope) {
  EnvelopeWriter writer;
  TERRACE_ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes,
                           writer.Encode(envelope, kMostMessageBytes));
  return PacketsOf(bytes, envelope.sequence);
}

absl::StatusOr<std::vector<std::vector<std::byte>>> PacketsOf(
    absl::Span<const std::byte> bytes, uint64_t sequence) {
  std::vector<std::vector<std::byte>> packets;
  if (bytes.size() <= kMostPacketBytes) {
    packets.emplace_back(bytes.begin(), bytes.end());
    return packets;
  }
  for (size_t begin = 0; begin < bytes.size(); begin += kPieceBytes) {
    const absl::Span<const std::byte> of = bytes.subspan(begin, kPieceBytes);
    Fragment piece;
    piece.bytes.assign(of.begin(), of.end());
    piece.left_bytes = bytes.size() - begin - of.size();
    TERRACE_ASSIGN_OR_RETURN(
        std::vector<std::byte> packet,
        Encode({.sequence = sequence, .body = std::move(piece)}));
    packets.push_back(std::move(packet));
  }
  return packets;
}

absl::StatusOr<bool> FragmentReader::Add(absl::Span<const std::byte> packet,
                                         Envelope* message) {
  TERRACE_RETURN_IF_ERROR(Decode(packet, kMostPacketBytes, reader_, message));
  auto* const piece = std::get_if<Fragment>(&message->body);
  if (piece == nullptr) {
    if (left_bytes_ == 0) return true;
    return absl::InvalidArgumentError(absl::StrCat(
        "another message, where a piece of ", left_bytes_, " bytes is due"));
  }
  const size_t now = piece->bytes.size();
  const uint64_t left = piece->left_bytes;
  const bool is_first = left_bytes_ == 0;
  // Sums are of what is bounded already: a number of a stranger's may be any.
  const bool follows =
      is_first ? now <= kMostMessageBytes && left <= kMostMessageBytes - now
               : now <= left_bytes_ && left == left_bytes_ - now;
  const bool is_too_short = left > 0 && now < kLeastPieceBytes;
  if (now == 0 || is_too_short || !follows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a piece of ", now, " bytes, with ", left, " to follow, after ",
        bytes_.size(), " of which ", left_bytes_, " were to follow; a message ",
        "has ", kMostMessageBytes, " at most, and but for the last a piece ",
        kLeastPieceBytes, " at least"));
  }
  bytes_.insert(bytes_.end(), piece->bytes.begin(), piece->bytes.end());
  left_bytes_ = piece->left_bytes;
  if (left_bytes_ > 0) return false;
  const std::vector<std::byte> whole = std::exchange(bytes_, {});
  TERRACE_RETURN_IF_ERROR(Decode(whole, kMostMessageBytes, reader_, message));
  if (!std::holds_alternative<Fragment>(message->body)) return true;
  return absl::InvalidArgumentError("a piece of a message that is a piece");
}

}  // namespace terrace
