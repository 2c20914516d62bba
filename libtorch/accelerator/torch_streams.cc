#include "libtorch/accelerator/torch_streams.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

struct TorchEvent final : DeviceEvent {
  explicit TorchEvent(c10::DeviceType type) : event(type) {}
  c10::Event event;
};

c10::Event& EventOf(DeviceEvent& event) {
  return static_cast<TorchEvent&>(event).event;
}

// Returns what `call` throws as a Status: a device that fails, fails for good.
template <typename Call>
absl::Status Caught(const char* what, c10::Device device, Call call) {
  try {
    call();
    return absl::OkStatus();
  } catch (const c10::Error& error) {
    return absl::UnavailableError(absl::StrCat(what, " on ", device.str(), ": ",
                                               error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat(what, " on ", device.str(), ": ", error.what()));
  }
}

}  // namespace

StreamId TorchStreams::CurrentStream() {
  StreamId stream = 0;
  Caught("a stream", device_, [&] {
    stream =
        c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).id();
  }).IgnoreError();
  return stream;
}

absl::StatusOr<std::shared_ptr<DeviceEvent>> TorchStreams::Record(
    StreamId stream) {
  std::shared_ptr<TorchEvent> made;
  absl::Status status = Caught("an event", device_, [&] {
    made = std::make_shared<TorchEvent>(device_.type());
    made->event.record(StreamOf(stream));
  });
  if (!status.ok()) return status;
  return made;
}

absl::StatusOr<bool> TorchStreams::IsOver(DeviceEvent& event) {
  bool is_over = false;
  absl::Status status = Caught("an event's state", device_,
                               [&] { is_over = EventOf(event).query(); });
  if (!status.ok()) return status;
  return is_over;
}

absl::Status TorchStreams::Wait(DeviceEvent& event) {
  return Caught("a wait", device_, [&] { EventOf(event).synchronize(); });
}

absl::Status TorchStreams::WaitForAll() {
  return Caught("a wait for all", device_, [&] {
    c10::impl::VirtualGuardImpl(device_.type())
        .synchronizeDevice(device_.index());
  });
}

absl::Status TorchStreams::Order(DeviceEvent& event, StreamId stream) {
  return Caught("an order", device_,
                [&] { EventOf(event).block(StreamOf(stream)); });
}

}  // namespace terrace
