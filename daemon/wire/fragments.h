// Messages that are longer than a packet: cut into fragments by who sends them,
// put together again by who receives them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/wire/envelope.h"

namespace terrace {

// The packets of a message; one, where it fits. ResourceExhausted: the message
// is longer than kMostMessageBytes.
absl::StatusOr<std::vector<std::vector<std::byte>>> PacketsOf(
    const Envelope& envelope);
// Of the bytes of one that has that number.
absl::StatusOr<std::vector<std::vector<std::byte>>> PacketsOf(
    absl::Span<const std::byte> bytes, uint64_t sequence);

// One thread at a time.
class FragmentReader {
 public:
  explicit FragmentReader(WireReader reader = WireReader::kClient)
      : reader_(reader) {}

  // Whether a message is whole with this packet, and then that; else pieces are
  // to follow. InvalidArgument: as Decode has it; pieces that do not follow
  // each other, are shorter than need be, or come to more than
  // kMostMessageBytes.
  absl::StatusOr<bool> Add(absl::Span<const std::byte> packet,
                           Envelope* message);

 private:
  const WireReader reader_;
  std::vector<std::byte> bytes_;
  size_t left_bytes_ = 0;  // 0: no piece is expected
};

}  // namespace terrace
