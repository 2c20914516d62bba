#include "libtorch/accelerator/device_hook.h"

#include <ATen/ops/empty.h>

#include <exception>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "libtorch/guarded.h"
#include "libtorch/hook/held_bytes.h"

namespace terrace {
namespace {

c10::StorageImpl* StorageOf(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

struct HeldBelow final : HostBytes {
  HeldBelow(at::Tensor from, HeldBytes bytes)
      : tensor(std::move(from)), held(std::move(bytes)) {}
  std::byte* data() const override { return held.data(); }

  const at::Tensor tensor;  // keeps the storage alive
  const HeldBytes held;
};

// A tensor in memory that a Hook manages.
class TensorBelow final : public BytesBelow {
 public:
  explicit TensorBelow(at::Tensor tensor) : tensor_(std::move(tensor)) {}

  absl::StatusOr<std::unique_ptr<HostBytes>> Hold(bool is_written) override {
    absl::StatusOr<HeldBytes> held =
        HeldBytes::Hold(*StorageOf(tensor_), {.is_written = is_written});
    if (!held.ok()) return held.status();
    return std::make_unique<HeldBelow>(tensor_, *std::move(held));
  }

 private:
  const at::Tensor tensor_;
};

// Why it cannot be managed, as the rest of a sentence, or "".
std::string Fault(const at::Tensor& tensor, const TorchStreamedDevice& memory) {
  if (!tensor.defined()) return "is undefined";
  if (tensor.device() != memory.device()) {
    return absl::StrCat("is on ", tensor.device().str(), ", not on ",
                        memory.device().str());
  }
  if (tensor.layout() != at::kStrided ||
      !tensor.unsafeGetTensorImpl()->has_storage()) {
    return "is not dense, or has no storage";
  }
  c10::StorageImpl& storage = *StorageOf(tensor);
  if (storage.nbytes() > 0 &&
      !memory.Made(storage._mutable_data_ptr_no_checks())) {
    return "has memory that LibTorch's allocator did not make, which cannot "
           "record streams";
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceHook>> DeviceHook::Create(
    Hook& below, TorchStreamedDevice& memory, ReliefPort& port,
    const DeviceWindow::Options& options) {
  std::unique_ptr<DeviceHook> hook(
      new DeviceHook(below, memory, port, options));
  if (!port.Attach(hook->window_.get())) {
    MutexLock lock(hook->mutex_);
    hook->is_closed_ = true;  // it has nothing of the port
    return absl::FailedPreconditionError(
        "another hook relieves the device's allocator");
  }
  return hook;
}

DeviceHook::DeviceHook(Hook& below, TorchStreamedDevice& memory,
                       ReliefPort& port, const DeviceWindow::Options& options)
    : below_(below),
      memory_(memory),
      port_(port),
      window_(std::make_unique<DeviceWindow>(memory, options)) {}

DeviceHook::~DeviceHook() {
  Close().IgnoreError();
  // Its events and blocks cannot end there.
  if (!process_.IsCurrent()) static_cast<void>(window_.release());
}

absl::Status DeviceHook::Manage(absl::Span<const NamedTensor> tensors) {
  {
    MutexLock lock(mutex_);
    if (is_closed_) return absl::FailedPreconditionError("the hook is closed");
  }
  Sweep();
  for (const NamedTensor& tensor : tensors) {
    TERRACE_RETURN_IF_ERROR(Add(tensor));
  }
  window_->Trim();
  return absl::OkStatus();
}

absl::Status DeviceHook::Add(const NamedTensor& tensor) {
  const std::string fault = Fault(tensor.tensor, memory_);
  if (!fault.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", tensor.name, "' ", fault));
  }
  c10::StorageImpl& storage = *StorageOf(tensor.tensor);
  if (storage.nbytes() == 0) return absl::OkStatus();
  {
    MutexLock lock(mutex_);
    if (entries_.contains(&storage)) return absl::OkStatus();
  }
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  at::Tensor below;
  TERRACE_RETURN_IF_ERROR(Guarded(c10::Device(c10::kCPU), [&] {
    below = at::empty({bytes}, at::TensorOptions(at::kByte));
  }));
  TERRACE_RETURN_IF_ERROR(below_.Manage(
      {{absl::StrCat(memory_.device().str(), "/", tensor.name), below}}));
  auto managed = std::make_shared<DeviceTensor>(
      tensor.name, bytes, memory_.CurrentStream(),
      std::make_unique<DeviceStorage>(tensor.name, storage, memory_),
      std::make_unique<TensorBelow>(std::move(below)));
  TERRACE_RETURN_IF_ERROR(window_->Add(managed));
  {
    MutexLock lock(mutex_);
    entries_[&storage] = {managed, &storage};
  }
  DeviceNet::Get().Insert(&storage, memory_.device().type(),
                          {managed, window_.get()});
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DeviceLease>> DeviceHook::MakeLease(
    const at::Tensor& tensor, bool is_written) {
  std::shared_ptr<DeviceTensor> found;
  if (tensor.defined() && tensor.unsafeGetTensorImpl()->has_storage()) {
    MutexLock lock(mutex_);
    const auto entry = entries_.find(StorageOf(tensor));
    if (entry != entries_.end()) {
      found = entry->second.tensor;
      found->word().Pin();
    }
  }
  if (found == nullptr) {
    return absl::InvalidArgumentError("the tensor is not managed by this hook");
  }
  auto lease = std::make_unique<DeviceLease>(tensor, found);
  TERRACE_RETURN_IF_ERROR(window_->Fetch(*found));
  TERRACE_RETURN_IF_ERROR(
      window_->Use(*found, is_written, window_->IsCapturing()));
  if (!window_->IsCapturing()) {
    TERRACE_RETURN_IF_ERROR(found->uses().Settle(memory_));
  }
  return lease;
}

int64_t DeviceHook::EvictAll() {
  Sweep();
  return window_->EvictAll();
}

void DeviceHook::BeginStep() {
  window_->BeginStep();
  Sweep();
}

std::vector<DeviceHook::Entry> DeviceHook::All() const {
  std::vector<Entry> all;
  MutexLock lock(mutex_);
  for (const auto& [key, entry] : entries_) all.push_back(entry);
  return all;
}

void DeviceHook::Erase(const Entry& entry) {
  std::shared_ptr<DeviceTensor> last;  // ends without the lock
  MutexLock lock(mutex_);
  const auto found = entries_.find(entry.key);
  if (found == entries_.end()) return;
  last = std::move(found->second.tensor);
  entries_.erase(found);
}

void DeviceHook::Sweep() {
  MutexLock lock(removing_);
  RemoveGone();
}

void DeviceHook::RemoveGone() {
  for (const Entry& entry : All()) {
    if (!window_->IsGone(*entry.tensor)) continue;
    DeviceNet::Get().Erase(entry.key);
    // Else an operation has it still.
    if (window_->Remove(*entry.tensor)) Erase(entry);
  }
}

absl::Status DeviceHook::Close() {
  if (!process_.IsCurrent()) return absl::OkStatus();
  MutexLock removing(removing_);
  {
    MutexLock lock(mutex_);
    if (is_closed_) return absl::OkStatus();
  }
  if (window_->IsCapturing()) {
    return absl::FailedPreconditionError("a graph is being captured");
  }
  RemoveGone();
  const std::vector<Entry> all = All();
  for (const Entry& entry : all) {
    if (entry.tensor->word().pinned()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "tensor '", entry.tensor->name(), "' is leased or in use"));
    }
  }
  {
    MutexLock lock(mutex_);
    is_closed_ = true;
  }
  port_.Detach();
  absl::Status first;
  // Pinned, so that one does not make room for the other.
  for (const Entry& entry : all) {
    DeviceNet::Get().Erase(entry.key);
    entry.tensor->word().Pin();
    const absl::Status status = window_->Fetch(*entry.tensor);
    first.Update(absl::IsFailedPrecondition(status)
                     ? absl::AbortedError(status.message())
                     : status);
  }
  for (const Entry& entry : all) {
    entry.tensor->word().Unpin();
    window_->Remove(*entry.tensor);
    Erase(entry);
  }
  return first;
}

}  // namespace terrace
