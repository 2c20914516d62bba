// What the rules of streams (stream_uses.h) ask of a device: its streams, their
// events, and the blocks of its caching allocator. Tests have a device that
// finds races.
//
// A stream runs what it is given in order. An event stands for all that a
// stream had been given as the event was recorded.
//
// Thread-safe. No function is called with a lock of this library held: the
// allocator has a lock of its own, under which it asks for memory back
// (relief_port.h).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

using StreamId = int64_t;  // as the device's library numbers them

class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
};

// Memory of the caching allocator, of one home stream. Its end gives it back:
// what its home stream is given from then on may have it at once, and what
// other streams were given is waited for only as far as their use was recorded.
class StreamedBlock {
 public:
  virtual ~StreamedBlock() = default;
  // The block's memory is not given to others before the stream has done what
  // it was given until the block's end.
  virtual absl::Status RecordUse(StreamId stream) = 0;
};

class StreamedDevice {
 public:
  virtual ~StreamedDevice() = default;

  // The one that the calling thread gives its operations to.
  virtual StreamId CurrentStream() = 0;
  virtual absl::StatusOr<std::shared_ptr<DeviceEvent>> Record(
      StreamId stream) = 0;
  // What the stream is given from here on comes after the event.
  virtual absl::Status Await(StreamId stream, DeviceEvent& event) = 0;
  // Blocks the calling thread until then.
  virtual absl::Status Wait(DeviceEvent& event) = 0;
  // Until all streams have done all that they were given.
  virtual absl::Status WaitForAll() = 0;
  // What the stream is given becomes a graph: it is recorded, and not run.
  virtual bool IsCapturing(StreamId stream) = 0;
};

}  // namespace terrace
