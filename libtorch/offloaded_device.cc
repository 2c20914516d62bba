#include "libtorch/offloaded_device.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "libtorch/accelerator/guarded.h"
#include "libtorch/tensor_check.h"

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

// To have bytes of one parameter here. Until it ends the others wait.
class OffloadedDevice::Turn {
 public:
  explicit Turn(OffloadedDevice& device) : device_(device) {
    MutexLock lock(device_.mutex_);
    while (device_.is_copying_) device_.copied_.Wait(device_.mutex_);
    device_.is_copying_ = true;
  }
  ~Turn() {
    MutexLock lock(device_.mutex_);
    device_.is_copying_ = false;
    device_.copied_.Signal();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  OffloadedDevice& device_;
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
  // What is on a device has no address that the CPU can use either.
  const bool is_away = gradient.defined() &&
                       (IsOffloaded(gradient) || !gradient.is_cpu());
  const bool is_offloaded = gradient.defined() && IsOffloaded(gradient);
  if (!is_offloaded && !IsOffloaded(parameter)) return false;
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

absl::StatusOr<OffloadedDevice::Found> OffloadedDevice::Find(
    const void* address, int64_t bytes) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  MutexLock lock(mutex_);
  auto found = placed_.upper_bound(wanted);
  if (found != placed_.begin()) {
    --found;
    const Placed& placed = found->second;
    const auto within = static_cast<int64_t>(wanted - found->first);
    if (within + bytes <= placed.bytes) {
      return Found{placed.storage, placed.offset + within, is_beside_};
    }
  }
  return absl::InternalError("an offloaded tensor that is not in the step");
}

absl::Status OffloadedDevice::Copy(
    const void* address, int64_t bytes, bool is_written,
    absl::FunctionRef<absl::Status(const HeldBytes&, int64_t)> copy) {
  const Turn turn(*this);
  TERRACE_ASSIGN_OR_RETURN(const Found found, Find(address, bytes));
  TERRACE_ASSIGN_OR_RETURN(
      const HeldBytes held,
      HeldBytes::Hold(
          *found.storage.unsafeGetStorageImpl(),
          {.is_written = is_written, .is_beside = found.is_beside}));
  return copy(held, found.offset);
}

absl::Status OffloadedDevice::CopyOut(void* target, const void* source,
                                      int64_t bytes) {
  if (reinterpret_cast<uintptr_t>(source) < kFirstAddress) {
    std::memcpy(target, source, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  return Copy(source, bytes, /*is_written=*/false,
              [&](const HeldBytes& held, int64_t offset) {
                return held.CopyTo(target, offset, bytes);
              });
}

absl::Status OffloadedDevice::CopyBack(void* target, const void* source,
                                       int64_t bytes) {
  return Copy(target, bytes, /*is_written=*/true,
              [&](const HeldBytes& held, int64_t offset) {
                return held.CopyFrom(source, offset, bytes);
              });
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
