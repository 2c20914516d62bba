// One way of a connection's rings: packets that one process writes into memory
// which both have, and the other one reads. Nothing blocks, and neither side
// trusts the other: each keeps its own place to itself and only publishes it,
// and what is read is copied out before anybody looks at it.
//
// Who rests asks for a word first, so that to write a packet takes no call of
// the kernel while its reader is awake. A reader's word is a bell (daemon/wire/
// message_channel.h), or where one of its threads waits in the memory itself, a
// wake-up there. Each side stores what it did and then loads what the other one
// wants, all in one order (Dekker's): one of the two sees the other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace terrace {

// Of packets with their lengths, in a ring: twice the longest one and more.
inline constexpr uint32_t kRingBytes = 256 << 10;

// Of a reader's thread. It needs no word while it looks, and a wake-up while it
// sleeps.
enum RingWait : uint32_t { kNobody, kLooks, kSleeps };

// What both sides have of a ring beside its bytes. Places count bytes from the
// beginning, modulo 2^32.
struct RingWords {
  alignas(64) std::atomic<uint32_t> written;  // the writer's place
  alignas(64) std::atomic<uint32_t> read;     // the reader's
  // The reader wants a bell for the next packet.
  alignas(64) std::atomic<uint32_t> reader_rests;
  // What a thread of the reader does that waits in the memory itself, a
  // RingWait: at `wakes` (futex(2)), which then rises.
  std::atomic<uint32_t> thread;
  std::atomic<uint32_t> wakes;
  // The writer wants a bell once there is room.
  alignas(64) std::atomic<uint32_t> writer_waits;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// A ring in memory: its words and kRingBytes.
struct RingView {
  RingWords* words = nullptr;
  std::byte* bytes = nullptr;
};

// One thread at a time.
class RingWriter {
 public:
  // From the place that the ring says is its own: nobody else has it yet.
  explicit RingWriter(RingView ring)
      : ring_(ring), place_(ring.words->written.load()) {}

  // Of 1 to kMostPacketBytes. False: there is no room now. InvalidArgument: the
  // reader's place is none that it can have.
  absl::StatusOr<bool> Write(absl::Span<const std::byte> packet);
  // After packets were written: true, the reader is to hear a bell.
  bool WakeReader();
  // There is no room for so long a packet, and a bell tells when there may be.
  // False: there is.
  bool AwaitRoom(size_t packet_bytes);

 private:
  bool HasRoom(size_t packet_bytes) const;

  const RingView ring_;
  uint32_t place_;
};

// One thread at a time.
class RingReader {
 public:
  // As a writer begins.
  explicit RingReader(RingView ring)
      : ring_(ring), place_(ring.words->read.load()) {}

  // The next one replaces what `packet` has. False: there is none now.
  // InvalidArgument: the writer's place, or a packet's length, is none that it
  // can have.
  absl::StatusOr<bool> Read(std::vector<std::byte>* packet);
  // What is written from here on is not read.
  void End() { end_ = ring_.words->written.load(); }
  // After packets were read: true, the writer is to hear a bell.
  bool WakeWriter();
  // From here until Stir the writer rings for what it writes. False: there is
  // something already, and it does not.
  bool Rest();
  void Stir();
  // Whether there is something to read, or was once more is written.
  bool HasMore() const { return ring_.words->written.load() != place_; }

 private:
  const RingView ring_;
  uint32_t place_;
  bool rests_ = false;  // its word says so, or did
  std::optional<uint32_t> end_;
};

}  // namespace terrace
