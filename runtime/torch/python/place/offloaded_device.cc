#include "runtime/torch/python/place/offloaded_device.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/torch/guarded.h"

namespace terrace {
namespace {

constexpr uintptr_t kAlignment = 4096;
// Gradients have other ones in each step.
constexpr size_t kMostStorages = 1 << 16;

at::Tensor Bytes(void* address, int64_t bytes) {
  return at::from_blob(address, {bytes}, at::TensorOptions(at::kByte));
}

}  // namespace

// Copies to the host are done when they are begun. Those to the parameters are
// begun by threads of a Runtime which, where the optimizer has joined the
// model, may have to work before room for the parameter is made: so they are
// done by the thread that polls.
class OffloadedDevice::CopyStream final : public Device::Stream {
 public:
  explicit CopyStream(OffloadedDevice& device) : device_(device) {}

  absl::Status CopyToHost(void* target, const void* source,
                          int64_t bytes) override {
    MutexLock lock(device_.mutex_);
    return Begun([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      const at::Tensor from = device_.Find(source, bytes);
      if (from.defined()) {
        Bytes(target, bytes).copy_(from);
      } else {
        std::memcpy(target, source, static_cast<size_t>(bytes));
      }
    });
  }

  absl::Status CopyToDevice(void* target, const void* source,
                            int64_t bytes) override {
    MutexLock lock(mutex_);
    returns_.push_back({target, source, bytes});
    return absl::OkStatus();
  }

  void Poll(std::vector<absl::Status>* ended) override {
    ended->insert(ended->end(), std::exchange(untold_, 0), absl::OkStatus());
    for (const Return& each : TakeReturns()) ended->push_back(Do(each));
  }

  absl::Status Wait() override {
    untold_ = 0;
    absl::Status status;
    for (const Return& each : TakeReturns()) status.Update(Do(each));
    return status;
  }

 private:
  struct Return {
    void* target;
    const void* source;
    int64_t bytes;
  };

  std::vector<Return> TakeReturns() {
    MutexLock lock(mutex_);
    return std::exchange(returns_, {});
  }

  absl::Status Do(const Return& copy) {
    MutexLock lock(device_.mutex_);
    const at::NoGradGuard without_graph;
    return Guarded(c10::kCPU, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      device_.Find(copy.target, copy.bytes)
          .copy_(Bytes(const_cast<void*>(copy.source), copy.bytes));
    });
  }

  template <typename Work>
  absl::Status Begun(const Work& work) {
    const at::NoGradGuard without_graph;
    const absl::Status status = Guarded(c10::kCPU, work);
    if (status.ok()) ++untold_;
    return status;
  }

  OffloadedDevice& device_;
  size_t untold_ = 0;  // copies
  Mutex mutex_;
  std::vector<Return> returns_ ABSL_GUARDED_BY(mutex_);
};

void* OffloadedDevice::Place(const at::Tensor& tensor) {
  const at::NoGradGuard without_graph;
  MutexLock lock(mutex_);
  const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  Extent& extent = storages_[&storage];
  if (extent.bytes < storage.nbytes()) {
    extent = {next_, storage.nbytes()};
    next_ += (extent.bytes / kAlignment + 1) * kAlignment;
  }
  const uintptr_t address =
      extent.start +
      static_cast<uintptr_t>(tensor.storage_offset()) * tensor.element_size();
  tensors_[address] = tensor.view({-1}).view(at::kByte);
  return reinterpret_cast<void*>(address);
}

void OffloadedDevice::Forget() {
  MutexLock lock(mutex_);
  tensors_.clear();
}

void OffloadedDevice::Prune() {
  MutexLock lock(mutex_);
  if (storages_.size() > kMostStorages) storages_.clear();
}

at::Tensor OffloadedDevice::Find(const void* address, int64_t bytes) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  auto found = tensors_.upper_bound(wanted);
  if (found == tensors_.begin()) return {};
  --found;
  const auto offset = static_cast<int64_t>(wanted - found->first);
  if (offset + bytes > found->second.numel()) return {};
  return found->second.narrow(0, offset, bytes);
}

absl::StatusOr<PinnedMemory> OffloadedDevice::AllocatePinned(int64_t bytes) {
  at::Tensor memory;
  const absl::Status status = Guarded(c10::kCPU, [&] {
    memory = at::empty({bytes}, at::TensorOptions(at::kByte));
  });
  if (!status.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(bytes, " bytes of staging memory: ", status.message()));
  }
  auto* const address = static_cast<std::byte*>(memory.mutable_data_ptr());
  return PinnedMemory(address,
                      [memory](std::byte*) mutable { memory.reset(); });
}

absl::StatusOr<std::unique_ptr<Device::Stream>> OffloadedDevice::MakeStream() {
  return std::make_unique<CopyStream>(*this);
}

}  // namespace terrace
