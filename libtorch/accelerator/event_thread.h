// An EventThread waits for a device's events, in the order in which they were
// given to it, and then does what waits for them. It is one thread: what waits
// for a stream that is far behind holds up what was given after it.
//
//   EventThread thread(streams);
//   thread.After(events, [pin = std::move(pin)](const auto& ended) { ... });
//
// It is thread-safe. What it does neither blocks for long nor uses the device.
// The destructor waits, for a while, until all is done; of a device that never
// answers the thread is left behind, and what waits there is never done. A
// forked child has no such thread, and does nothing.
#pragma once

#include <memory>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "base/process.h"
#include "libtorch/accelerator/streamed_device.h"

namespace terrace {

class EventThread {
 public:
  // How a wait has ended.
  struct Ended {
    absl::Status error;   // the first
    bool is_over = true;  // false: the device does not tell
  };
  using Done = absl::AnyInvocable<void(const Ended&)>;

  // Throws std::system_error where there is no thread to be had.
  explicit EventThread(std::shared_ptr<StreamedDevice> device);
  ~EventThread();
  EventThread(const EventThread&) = delete;
  EventThread& operator=(const EventThread&) = delete;

  // Calls `done` once all of the events are over. A wait that fails says that
  // something failed, and not that the stream has come so far: it is made once
  // more. A device that is lost fails again.
  void After(DeviceEvents events, Done done);
  // Calls `done` once all that the device was given until then is over, as no
  // event can be had, for this reason.
  void AfterAll(const absl::Status& why, Done done);

 private:
  struct State;

  const Process process_;
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace terrace
