#include "libtorch/accelerator/torch_streams.h"

#include <c10/core/CachingDeviceAllocator.h>
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

// `call` as a Status: a device that fails, fails for good.
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
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).id();
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

absl::Status TorchStreams::Await(StreamId stream, DeviceEvent& event) {
  return Caught("a stream's wait", device_,
                [&] { EventOf(event).block(StreamOf(stream)); });
}

absl::Status TorchStreams::Wait(DeviceEvent& event) {
  return Caught("a wait", device_, [&] { EventOf(event).synchronize(); });
}

absl::Status TorchStreams::WaitForAll() {
  return Caught("a wait for all streams", device_, [&] {
    c10::impl::VirtualGuardImpl(device_.type())
        .synchronizeDevice(device_.index());
  });
}

absl::Status TorchBlock::RecordUse(StreamId stream) {
  const c10::Device device = data_.device();
  return Caught("a block's use", device, [&] {
    c10::getDeviceAllocator(device.type())
        ->recordStream(data_, c10::Stream(c10::Stream::UNSAFE, device, stream));
  });
}

}  // namespace terrace
