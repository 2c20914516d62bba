#include "daemon/wire/ring/packet_ring.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/wire/envelope.h"
#include "daemon/wire/ring/futex.h"

namespace terrace {
namespace {

constexpr uint32_t kLengthBytes = sizeof(uint32_t);
static_assert((kRingBytes & (kRingBytes - 1)) == 0, "places are taken modulo");

// With its length; a length is never cut by the ring's end.
uint32_t TakenBy(size_t packet_bytes) {
  const auto size = static_cast<uint32_t>(packet_bytes);
  return kLengthBytes + (size + kLengthBytes - 1) / kLengthBytes * kLengthBytes;
}

// How many of these come before the ring's end.
size_t Before(uint32_t place, size_t bytes) {
  return std::min<size_t>(bytes, kRingBytes - place % kRingBytes);
}

void CopyIn(const RingView& ring, uint32_t place, const void* from,
            size_t bytes) {
  const size_t first = Before(place, bytes);
  const auto* const begin = static_cast<const std::byte*>(from);
  std::memcpy(ring.bytes + place % kRingBytes, begin, first);
  std::memcpy(ring.bytes, begin + first, bytes - first);
}

void CopyOut(const RingView& ring, uint32_t place, void* to, size_t bytes) {
  const size_t first = Before(place, bytes);
  auto* const begin = static_cast<std::byte*>(to);
  std::memcpy(begin, ring.bytes + place % kRingBytes, first);
  std::memcpy(begin + first, ring.bytes, bytes - first);
}

absl::Status NoPlace(const char* whose, uint32_t other, uint32_t own) {
  return absl::InvalidArgumentError(
      absl::StrCat("a ring whose ", whose, " is at byte ", other,
                   ", where this side is at ", own));
}

}  // namespace

bool RingWriter::HasRoom(size_t packet_bytes) const {
  const uint32_t used = place_ - ring_.words->read.load();
  return used <= kRingBytes && kRingBytes - used >= TakenBy(packet_bytes);
}

absl::StatusOr<bool> RingWriter::Write(absl::Span<const std::byte> packet) {
  const uint32_t read = ring_.words->read.load();
  if (place_ - read > kRingBytes) return NoPlace("reader", read, place_);
  if (!HasRoom(packet.size())) return false;
  const auto length = static_cast<uint32_t>(packet.size());
  CopyIn(ring_, place_, &length, sizeof(length));
  CopyIn(ring_, place_ + kLengthBytes, packet.data(), packet.size());
  place_ += TakenBy(packet.size());
  ring_.words->written.store(place_);
  return true;
}

bool RingWriter::WakeReader() {
  const uint32_t thread = ring_.words->thread.load();
  if (thread == kSleeps) {
    ring_.words->wakes.fetch_add(1);
    FutexWake(ring_.words->wakes);
  }
  if (thread != kNobody) return false;
  return ring_.words->reader_rests.load() != 0 &&
         ring_.words->reader_rests.exchange(0) != 0;
}

bool RingWriter::AwaitRoom(size_t packet_bytes) {
  ring_.words->writer_waits.store(1);
  if (!HasRoom(packet_bytes)) return true;
  ring_.words->writer_waits.store(0);
  return false;
}

absl::StatusOr<bool> RingReader::Read(std::vector<std::byte>* packet) {
  const uint32_t written =
      end_.has_value() ? *end_ : ring_.words->written.load();
  const uint32_t there = written - place_;
  if (there == 0) return false;
  if (there > kRingBytes || there < kLengthBytes) {
    return NoPlace("writer", written, place_);
  }
  uint32_t length = 0;
  CopyOut(ring_, place_, &length, sizeof(length));
  const bool is_whole =
      length > 0 && length <= kMostPacketBytes && TakenBy(length) <= there;
  if (!is_whole) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packet of ", length, " bytes in a ring that has ",
                     there, "; one has 1 to ", kMostPacketBytes));
  }
  packet->resize(length);
  CopyOut(ring_, place_ + kLengthBytes, packet->data(), length);
  place_ += TakenBy(length);
  ring_.words->read.store(place_);
  return true;
}

bool RingReader::WakeWriter() {
  return ring_.words->writer_waits.load() != 0 &&
         ring_.words->writer_waits.exchange(0) != 0;
}

bool RingReader::Rest() {
  rests_ = true;
  ring_.words->reader_rests.store(1);
  if (ring_.words->written.load() == place_) return true;
  Stir();
  return false;
}

void RingReader::Stir() {
  if (std::exchange(rests_, false)) ring_.words->reader_rests.store(0);
}

}  // namespace terrace
