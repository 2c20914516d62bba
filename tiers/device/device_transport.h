// DRAM to and from one device: two queues of copies, one a direction, so that
// neither waits for the other (device_queue.h says what a move's end means, and
// when it is late). Copies are polled; their ends wake the mover, and no thread
// waits for them. Errors name device, stream and range.
//
// A device that fails for good ends the tier: what is begun ends as the device
// says, what is not and all that comes later as Unavailable, with the device's
// code. The driver has stopped what it had by the time it says so.
//
// One thread, the mover's. May be destroyed while copies are under way: then
// the space is left behind, and the wake is not called again. The memory of
// moves stays until they have ended, the clock as long as the transport.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "tiers/device/device_queue.h"
#include "tiers/device/device_space.h"
#include "tiers/transport.h"

namespace terrace {

class DeviceTransport final : public Transport {
 public:
  // `wake` is called whenever Poll may have something to say, on threads of
  // the device or the caller's, and not after the destructor. It must not call
  // the transport.
  DeviceTransport(TierId tier, std::shared_ptr<DeviceSpace> space, Clock& clock,
                  std::function<void()> wake,
                  const DeviceQueueOptions& options = {});
  ~DeviceTransport() override;
  DeviceTransport(const DeviceTransport&) = delete;
  DeviceTransport& operator=(const DeviceTransport&) = delete;

  void Begin(const Move& move) override;
  void Cancel(Edge edge, uint64_t tag) override;
  void Promote(Edge edge, uint64_t tag, IoClass io_class) override;
  void Poll(std::vector<Moved>* moved) override;
  int64_t pending() const override;
  absl::Time NextEvent() const override;

  // What was copied from the device (read) and to it (written).
  IoPathStats stats() const;

 private:
  class Waker;

  DeviceQueue& QueueOf(Edge edge);

  const TierId tier_;
  const std::shared_ptr<DeviceSpace> space_;
  Clock& clock_;
  const int64_t in_flight_limit_bytes_;
  const std::shared_ptr<Waker> waker_;  // shared with the device's calls
  PathMeter meter_;
  DeviceQueue from_device_;
  DeviceQueue to_device_;
};

}  // namespace terrace
