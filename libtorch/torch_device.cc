#include "libtorch/torch_device.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "libtorch/accelerator/device_extras.h"
#include "libtorch/accelerator/event_thread.h"
#include "libtorch/accelerator/guarded.h"
#include "libtorch/accelerator/raw_copy.h"
#include "libtorch/accelerator/stream_rules.h"
#include "libtorch/accelerator/torch_streams.h"

namespace terrace {
namespace {

// Whether a device has failed for good. Thread-safe.
class LastingFailure {
 public:
  void Lose(const absl::Status& why) {
    MutexLock lock(mutex_);
    lost_.Update(absl::UnavailableError(why.message()));
  }
  absl::Status status() const {
    MutexLock lock(mutex_);
    return lost_;
  }

 private:
  mutable Mutex mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
};

class TorchStream final : public Device::Stream {
 public:
  // `thread` waits for this and other streams of the device.
  TorchStream(c10::Stream stream, std::shared_ptr<TorchStreams> streams,
              std::shared_ptr<EventThread> thread,
              std::shared_ptr<LastingFailure> health)
      : device_(stream.device()),
        stream_(stream),
        streams_(std::move(streams)),
        thread_(std::move(thread)),
        health_(std::move(health)) {}

  absl::Status CopyToHost(void* target, const void* source,
                          int64_t bytes) override {
    return Copy(target, at::kCPU, source, device_, bytes);
  }
  absl::Status CopyToDevice(void* target, const void* source,
                            int64_t bytes) override {
    return Copy(target, device_, source, at::kCPU, bytes);
  }
  void Poll(std::vector<absl::Status>* ended) override {
    while (!begun_.empty() && IsOver(begun_.front())) {
      ended->push_back(std::move(begun_.front().status));
      begun_.pop_front();
    }
  }
  absl::Status OnDone(std::function<void()> run) override {
    if (device_.is_cpu()) {
      run();
      return absl::OkStatus();
    }
    TERRACE_ASSIGN_OR_RETURN(std::shared_ptr<DeviceEvent> event,
                             streams_->Record(stream_.id()));
    thread_->After(
        {std::move(event)},
        [run = std::move(run)](const EventThread::Ended&) { run(); });
    return absl::OkStatus();
  }
  absl::Status Wait() override {
    begun_.clear();
    return Guarded(device_, [this] { stream_.synchronize(); });
  }

 private:
  absl::Status Copy(void* target, c10::Device target_device, const void* source,
                    c10::Device source_device, int64_t bytes) {
    absl::Status copied;
    TERRACE_RETURN_IF_ERROR(Guarded(device_, [&] {
      const c10::StreamGuard guard(stream_);
      copied = CopyRaw({target, target_device},
                       {const_cast<void*>(source), source_device}, bytes,
                       /*is_waited_for=*/false);
    }));
    TERRACE_RETURN_IF_ERROR(copied);
    begun_.push_back(End());
    return absl::OkStatus();
  }
  // The end of a copy: the event's, or past, with how it ended.
  struct Ending {
    std::shared_ptr<DeviceEvent> event;
    absl::Status status;
  };
  // A question that fails says that something failed, and not that the copy has
  // ended: it is asked once more. A device that is lost fails again.
  bool IsOver(Ending& ending) {
    if (ending.event == nullptr) return true;
    absl::StatusOr<bool> is_over = streams_->IsOver(*ending.event);
    if (!is_over.ok()) {
      ending.status.Update(is_over.status());
      is_over = streams_->IsOver(*ending.event);
    }
    if (!is_over.ok()) health_->Lose(is_over.status());
    return is_over.value_or(true);
  }
  // That of the copy that was just begun.
  Ending End() {
    const bool is_over =
        device_.is_cpu() || !rules_.Has(StreamRule::kUseWaitsForCopy);
    if (is_over) return {};
    absl::StatusOr<std::shared_ptr<DeviceEvent>> event =
        streams_->Record(stream_.id());
    if (event.ok()) return {*std::move(event), absl::OkStatus()};
    // Nothing else tells its end.
    return {nullptr, Guarded(device_, [this] { stream_.synchronize(); })};
  }

  const c10::Device device_;
  const c10::Stream stream_;
  const std::shared_ptr<TorchStreams> streams_;
  const std::shared_ptr<EventThread> thread_;
  const std::shared_ptr<LastingFailure> health_;
  const StreamRules rules_ = StreamRules::Current();
  std::deque<Ending> begun_;  // of copies that were not told of
};

class TorchDevice final : public Device {
 public:
  explicit TorchDevice(c10::Device device)
      : device_(device), streams_(std::make_shared<TorchStreams>(device)) {}

  std::string name() const override { return device_.str(); }
  absl::Status Health() const override { return health_->status(); }

  absl::StatusOr<DeviceMemory> Allocate(int64_t bytes) override {
    absl::StatusOr<c10::DataPtr> memory = AllocateRaw(device_, bytes);
    if (!memory.ok()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          bytes, " bytes: ", absl::string_view(memory.status().message())));
    }
    auto block = std::make_shared<c10::DataPtr>(*std::move(memory));
    if (rules_.Has(StreamRule::kCopyWaitsForAllocation)) {
      TERRACE_RETURN_IF_ERROR(Synchronize());
    }
    void* const address = block->mutable_get();
    return DeviceMemory(address, [block](void*) mutable { block.reset(); });
  }

  absl::StatusOr<PinnedMemory> AllocatePinned(int64_t bytes) override {
    at::Tensor memory;
    const absl::Status status = Guarded(device_, [&] {
      const c10::DeviceGuard guard(device_);
      // Only a device's driver can pin.
      memory = at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(
                                      !device_.is_cpu()));
    });
    if (!status.ok()) {
      return absl::ResourceExhaustedError(
          absl::StrCat(bytes, " bytes of pinned memory: ", status.message()));
    }
    auto* const address = static_cast<std::byte*>(memory.mutable_data_ptr());
    return PinnedMemory(address,
                        [memory](std::byte*) mutable { memory.reset(); });
  }

  absl::StatusOr<std::unique_ptr<Stream>> MakeStream() override {
    std::unique_ptr<Stream> stream;
    const absl::Status status = Guarded(device_, [&] {
      const c10::impl::VirtualGuardImpl implementation(device_.type());
      MutexLock lock(mutex_);
      if (thread_ == nullptr && !device_.is_cpu()) {
        thread_ = std::make_shared<EventThread>(streams_);
      }
      stream = std::make_unique<TorchStream>(
          implementation.getNewStream(device_, /*priority=*/0), streams_,
          thread_, health_);
    });
    if (!status.ok()) return status;
    return stream;
  }

  absl::Status Synchronize() override {
    return Guarded(device_, [this] {
      const c10::impl::VirtualGuardImpl implementation(device_.type());
      implementation.getStream(device_).synchronize();
    });
  }

 private:
  absl::StatusOr<HostRegistration> Register(
      absl::Span<std::byte> piece) override {
    const std::shared_ptr<DeviceExtras> extras = ExtrasOf(device_.type());
    if (extras == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat(name(), ": nothing here registers host memory with it"));
    }
    TERRACE_RETURN_IF_ERROR(extras->RegisterHost(piece));
    return HostRegistration(piece.data(), [extras](void* begin) {
      extras->UnregisterHost(static_cast<std::byte*>(begin));
    });
  }

  const c10::Device device_;
  const std::shared_ptr<TorchStreams> streams_;
  const std::shared_ptr<LastingFailure> health_ =
      std::make_shared<LastingFailure>();
  const StreamRules rules_ = StreamRules::Current();
  Mutex mutex_;
  // From the first stream on.
  std::shared_ptr<EventThread> thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Device> MakeTorchDevice(c10::Device device) {
  return std::make_unique<TorchDevice>(device);
}

bool CanStepOn(c10::Device device) {
  return device.is_cpu() ||
         (!device.is_meta() && c10::impl::hasDeviceGuardImpl(device.type()));
}

TensorDevices::TensorDevices()
    : choose_([](c10::Device device) -> std::unique_ptr<Device> {
        return device.is_cpu() ? nullptr : MakeTorchDevice(device);
      }) {}

Device* TensorDevices::Of(const at::Tensor& tensor) {
  const c10::Device wanted = tensor.device();
  for (const auto& [device, made] : devices_) {
    if (device == wanted) return made.get();
  }
  devices_.emplace_back(wanted, choose_(wanted));
  return devices_.back().second.get();
}

}  // namespace terrace
