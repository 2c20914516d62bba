#include "runtime/torch/offloaded_device.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/torch/guarded.h"
#include "runtime/torch/hook/held_bytes.h"
#include "runtime/torch/tensor_check.h"

namespace terrace {
namespace {

constexpr uintptr_t kAlignment = 4096;
// No memory is from here on.
constexpr uintptr_t kFirstAddress = uintptr_t{1} << 62;
// Gradients have other ones in each step.
constexpr size_t kMostStorages = 1 << 16;

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
    TERRACE_RETURN_IF_ERROR(device_.CopyOut(target, source, bytes));
    ++untold_;
    return absl::OkStatus();
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
    return device_.CopyBack(copy.target, copy.source, copy.bytes);
  }

  OffloadedDevice& device_;
  size_t untold_ = 0;  // copies
  Mutex mutex_;
  std::vector<Return> returns_ ABSL_GUARDED_BY(mutex_);
};

OffloadedDevice::OffloadedDevice() : next_(kFirstAddress) {}

void* OffloadedDevice::Place(const at::Tensor& tensor) {
  MutexLock lock(mutex_);
  const c10::Storage& storage = tensor.storage();
  Extent& extent = storages_[storage.unsafeGetStorageImpl()];
  if (extent.bytes < storage.nbytes()) {
    extent = {next_, storage.nbytes()};
    next_ += (extent.bytes / kAlignment + 1) * kAlignment;
  }
  const auto size = static_cast<int64_t>(tensor.element_size());
  const int64_t offset = tensor.storage_offset() * size;
  const uintptr_t address = extent.start + static_cast<uintptr_t>(offset);
  Placed& placed = placed_[address];  // parameters may share a gradient
  placed = {storage, offset, std::max(placed.bytes, tensor.numel() * size),
            placed.times + 1};
  return reinterpret_cast<void*>(address);
}

bool OffloadedDevice::Point(const at::Tensor& parameter,
                            const at::Tensor& gradient, ParameterData& data) {
  const bool is_away = gradient.defined() && IsOffloaded(gradient);
  if (!is_away && !IsOffloaded(parameter)) return false;
  data.parameter = Place(parameter);
  data.device = this;
  if (gradient.defined()) {
    data.gradient = is_away ? Place(gradient) : gradient.const_data_ptr();
  }
  return true;
}

void OffloadedDevice::Drop(const void* address) {
  MutexLock lock(mutex_);
  const auto found = placed_.find(reinterpret_cast<uintptr_t>(address));
  if (found != placed_.end() && --found->second.times == 0) {
    placed_.erase(found);
  }
}

void OffloadedDevice::Forget() {
  std::map<uintptr_t, Placed> forgotten;  // ends without the lock
  MutexLock lock(mutex_);
  forgotten.swap(placed_);
}

void OffloadedDevice::Prune() {
  MutexLock lock(mutex_);
  if (storages_.size() > kMostStorages) storages_.clear();
}

void OffloadedDevice::SetBeside(bool is_beside) {
  MutexLock lock(mutex_);
  is_beside_ = is_beside;
}

const OffloadedDevice::Placed* OffloadedDevice::Find(const void* address,
                                                     int64_t bytes,
                                                     int64_t* offset) const {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  auto found = placed_.upper_bound(wanted);
  if (found == placed_.begin()) return nullptr;
  --found;
  const auto within = static_cast<int64_t>(wanted - found->first);
  if (within + bytes > found->second.bytes) return nullptr;
  *offset = found->second.offset + within;
  return &found->second;
}

absl::Status OffloadedDevice::CopyOut(void* target, const void* source,
                                      int64_t bytes) {
  MutexLock lock(mutex_);
  if (reinterpret_cast<uintptr_t>(source) < kFirstAddress) {
    std::memcpy(target, source, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  int64_t offset = 0;
  const Placed* const placed = Find(source, bytes, &offset);
  if (placed == nullptr) {
    return absl::InternalError("an offloaded tensor that is not in the step");
  }
  TERRACE_ASSIGN_OR_RETURN(
      const HeldBytes held,
      HeldBytes::Hold(*placed->storage.unsafeGetStorageImpl(),
                      {.is_beside = is_beside_}));
  std::memcpy(target, held.data() + offset, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status OffloadedDevice::CopyBack(void* target, const void* source,
                                       int64_t bytes) {
  MutexLock lock(mutex_);
  int64_t offset = 0;
  const Placed* const placed = Find(target, bytes, &offset);
  if (placed == nullptr) {
    return absl::InternalError("an offloaded tensor that is not in the step");
  }
  TERRACE_ASSIGN_OR_RETURN(
      const HeldBytes held,
      HeldBytes::Hold(*placed->storage.unsafeGetStorageImpl(),
                      {.is_written = true, .is_beside = is_beside_}));
  std::memcpy(held.data() + offset, source, static_cast<size_t>(bytes));
  return absl::OkStatus();
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
