// What the rules of streams (stream_rules.h) ask of a device: its streams and
// their events.
//
// A stream runs what it is given in order. An event stands for all that a
// stream had been given as the event was recorded.
//
// Thread-safe. No function is called with a lock of this library held.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

using StreamId = int64_t;  // as the device's library numbers them

class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
};

using DeviceEvents = std::vector<std::shared_ptr<DeviceEvent>>;

class StreamedDevice {
 public:
  virtual ~StreamedDevice() = default;

  // Returns the stream that the calling thread gives its operations to; the
  // device's own one where the device does not tell.
  virtual StreamId CurrentStream() = 0;
  virtual absl::StatusOr<std::shared_ptr<DeviceEvent>> Record(
      StreamId stream) = 0;
  // Returns whether all that the event stands for is over, and does not wait.
  virtual absl::StatusOr<bool> IsOver(DeviceEvent& event) = 0;
  // Blocks the calling thread until it is.
  virtual absl::Status Wait(DeviceEvent& event) = 0;
  // Blocks the calling thread until all streams have done what they were given.
  virtual absl::Status WaitForAll() = 0;
  // Has what the stream is given from now on wait for the event.
  virtual absl::Status Order(DeviceEvent& event, StreamId stream) = 0;
};

}  // namespace terrace
