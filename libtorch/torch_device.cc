#include "libtorch/torch_device.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "libtorch/guarded.h"

namespace terrace {
namespace {

at::Tensor Bytes(void* address, int64_t bytes, c10::Device device) {
  return at::for_blob(address, {bytes})
      .options(at::TensorOptions(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

class TorchStream final : public Device::Stream {
 public:
  explicit TorchStream(c10::Stream stream)
      : device_(stream.device()), stream_(stream) {}

  absl::Status CopyToHost(void* target, const void* source,
                          int64_t bytes) override {
    return Copy(target, at::kCPU, source, device_, bytes);
  }
  absl::Status CopyToDevice(void* target, const void* source,
                            int64_t bytes) override {
    return Copy(target, device_, source, at::kCPU, bytes);
  }
  // All or none of them.
  void Poll(std::vector<absl::Status>* ended) override {
    if (begun_ == 0) return;
    bool done = false;
    const absl::Status status =
        Guarded(device_, [&] { done = stream_.query(); });
    if (status.ok() && !done) return;
    ended->insert(ended->end(), static_cast<size_t>(begun_), status);
    begun_ = 0;
  }
  absl::Status Wait() override {
    begun_ = 0;
    return Guarded(device_, [this] { stream_.synchronize(); });
  }

 private:
  absl::Status Copy(void* target, c10::Device target_device, const void* source,
                    c10::Device source_device, int64_t bytes) {
    const absl::Status status = Guarded(device_, [&] {
      const at::NoGradGuard without_graph;
      const c10::StreamGuard guard(stream_);
      Bytes(target, bytes, target_device)
          .copy_(Bytes(const_cast<void*>(source), bytes, source_device),
                 /*non_blocking=*/true);
    });
    if (status.ok()) ++begun_;
    return status;
  }

  const c10::Device device_;
  const c10::Stream stream_;
  int64_t begun_ = 0;  // copies that were not told of
};

class TorchDevice final : public Device {
 public:
  explicit TorchDevice(c10::Device device) : device_(device) {}

  std::string name() const override { return device_.str(); }

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
      stream = std::make_unique<TorchStream>(
          implementation.getNewStream(device_, /*priority=*/0));
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
  const c10::Device device_;
};

}  // namespace

std::unique_ptr<Device> MakeTorchDevice(c10::Device device) {
  return std::make_unique<TorchDevice>(device);
}

bool CanStepOn(c10::Device device) {
  return device.is_cpu() || device.is_cuda();
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
