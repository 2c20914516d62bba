// What the hook's rules for a device ask of it: streams, events, blocks of its
// caching allocator and copies. cuda_memory.cc has the real one; tests have one
// that finds races.
//
// A stream runs what it is given in order. An event stands for all that a
// stream had been given as the event was recorded.
//
// Thread-safe. No function is called with a lock of this library held: the
// allocator has a lock of its own, under which it asks for memory back
// (relief_port.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

using StreamId = int64_t;  // as the device's library numbers them

class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
};

// Memory of the caching allocator. Its end gives it back: what its home stream
// is given from then on may have it at once, and what other streams were given
// is waited for only as far as their use was recorded (BlockPlace::RecordUse).
class DeviceBlock {
 public:
  virtual ~DeviceBlock() = default;
  virtual std::byte* address() const = 0;
};

// Where a tensor's block is while it is in use: the storage of the device's
// library. For the thread that has the tensor's word (residency_word.h), but
// for RecordUse and Refuse, which are for those that have it pinned too.
class BlockPlace {
 public:
  virtual ~BlockPlace() = default;

  // The storage is no more, or was given other memory; for good.
  virtual bool is_gone() const = 0;
  // Where its bytes are; null: not here.
  virtual std::byte* address() const = 0;
  // False: it is gone.
  virtual bool Install(std::unique_ptr<DeviceBlock> block) = 0;
  // The storage lives until Settle, and its block with it. False: it is gone.
  virtual bool Keep() = 0;
  // Null: it is gone, and there is nothing to take. As Keep, so that nothing
  // but the block ends with it.
  virtual std::unique_ptr<DeviceBlock> Take() = 0;
  virtual void Settle() = 0;
  // The block's memory is not given to others before the stream has done what
  // it was given until the block's end. Nothing if there is no block.
  virtual absl::Status RecordUse(StreamId stream) = 0;
  // From here on each look at its bytes throws with this text, until Install or
  // Forgive. False: for ever.
  virtual bool Refuse(const std::string& text) = 0;
  virtual void Forgive() = 0;
};

// Bytes in memory, for as long as this lives.
class HostBytes {
 public:
  virtual ~HostBytes() = default;
  virtual std::byte* data() const = 0;
};

// Where a tensor's bytes are while they are not on the device. Thread-safe.
class BytesBelow {
 public:
  virtual ~BytesBelow() = default;
  // Blocks until they are in memory.
  virtual absl::StatusOr<std::unique_ptr<HostBytes>> Hold(bool is_written) = 0;
};

enum class CopyDirection : uint8_t { kToDevice, kToHost };

class StreamedDevice {
 public:
  virtual ~StreamedDevice() = default;

  // The one that the calling thread gives its operations to.
  virtual StreamId CurrentStream() = 0;
  // Nothing but copies of this library is given to these.
  virtual StreamId CopyStream(CopyDirection direction) const = 0;
  virtual absl::StatusOr<std::shared_ptr<DeviceEvent>> Record(
      StreamId stream) = 0;
  // What the stream is given from here on comes after the event.
  virtual absl::Status Await(StreamId stream, DeviceEvent& event) = 0;
  virtual absl::StatusOr<bool> IsDone(DeviceEvent& event) = 0;
  // Blocks the calling thread until then.
  virtual absl::Status Wait(DeviceEvent& event) = 0;
  // Until all streams have done all that they were given.
  virtual absl::Status WaitForAll() = 0;
  // What the stream is given becomes a graph: it is recorded, and not run.
  virtual bool IsCapturing(StreamId stream) = 0;

  // ResourceExhausted: not to be had. May call the relief's port first.
  virtual absl::StatusOr<std::unique_ptr<DeviceBlock>> Allocate(
      int64_t bytes, StreamId home) = 0;
  // Given to the copy stream of its direction. Host memory stays until then.
  virtual absl::Status Copy(CopyDirection direction, std::byte* target,
                            const std::byte* source, int64_t bytes) = 0;

  struct Usage {
    int64_t allocated_bytes = 0;  // by programs
    int64_t reserved_bytes = 0;   // and kept for them
    int64_t limit_bytes = INT64_MAX;
  };
  // Under the allocator's lock too.
  virtual Usage usage() = 0;
};

}  // namespace terrace
