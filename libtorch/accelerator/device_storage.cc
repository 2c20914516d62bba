#include "libtorch/accelerator/device_storage.h"

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "libtorch/hook/compat.h"

namespace terrace {
namespace {

c10::weak_intrusive_ptr<c10::StorageImpl> WeakOf(c10::StorageImpl& storage) {
  return c10::weak_intrusive_ptr<c10::StorageImpl>(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage));
}

}  // namespace

DeviceStorage::DeviceStorage(std::string name, c10::StorageImpl& storage,
                             TorchStreamedDevice& memory)
    : name_(std::move(name)),
      memory_(memory),
      key_(&storage),
      storage_(WeakOf(storage)),
      size_bytes_(storage.nbytes()),
      address_(storage._mutable_data_ptr_no_checks().mutable_get()) {}

DeviceStorage::~DeviceStorage() = default;

void DeviceStorage::OnDeath(void* context) {
  auto* const life = static_cast<std::shared_ptr<Life>*>(context);
  (*life)->is_over.store(true);
  delete life;
}

bool DeviceStorage::IsCold(const c10::StorageImpl& storage) const {
  const c10::DataPtr& data =
      const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  return data.get_deleter() == &OnDeath && data.get_context() == cold_;
}

bool DeviceStorage::IsOurs(c10::StorageImpl& storage) const {
  if (storage.nbytes() != size_bytes_) return false;
  void* const address = address_.load();
  return address == nullptr
             ? IsCold(storage)
             : storage._mutable_data_ptr_no_checks().get() == address;
}

bool DeviceStorage::is_gone() const {
  if (life_->is_over.load() || storage_.expired()) return true;
  // The last reference may end here, outside of any lock.
  const c10::intrusive_ptr<c10::StorageImpl> storage = storage_.lock();
  return !storage || !IsOurs(*storage);
}

std::byte* DeviceStorage::address() const {
  return static_cast<std::byte*>(address_.load());
}

bool DeviceStorage::Install(std::unique_ptr<DeviceBlock> block) {
  const c10::intrusive_ptr<c10::StorageImpl> storage = storage_.lock();
  if (!storage || !IsOurs(*storage)) return false;
  auto& made = static_cast<DataPtrBlock&>(*block);
  void* const address = made.address();
  c10::DataPtr& old = storage->_mutable_data_ptr_no_checks();
  // An exchange is no death.
  delete static_cast<std::shared_ptr<Life>*>(old.release_context());
  cold_ = nullptr;
  storage->set_data_ptr_noswap(made.Release());
  address_.store(address);
  Disarm(*storage);
  return true;
}

bool DeviceStorage::Keep() {
  kept_ = storage_.lock();
  return kept_ && IsOurs(*kept_);
}

std::unique_ptr<DeviceBlock> DeviceStorage::Take() {
  c10::intrusive_ptr<c10::StorageImpl> storage = storage_.lock();
  if (!storage || address_.load() == nullptr || !IsOurs(*storage)) {
    kept_ = std::move(storage);
    return nullptr;
  }
  auto block = std::make_unique<DataPtrBlock>(
      std::move(storage->_mutable_data_ptr_no_checks()));
  cold_ = new std::shared_ptr<Life>(life_);
  storage->set_data_ptr_noswap(
      c10::DataPtr(nullptr, cold_, &OnDeath, memory_.device()));
  address_.store(nullptr);
  if constexpr (kCanDisarm<c10::StorageImpl>) {
    Arm(*storage,
        absl::StrCat("terrace: '", name_, "' ",
                     FormatBytes(static_cast<int64_t>(size_bytes_)),
                     ": its bytes are not on the device; operations bring "
                     "them, other readers need a lease"));
  }
  kept_ = std::move(storage);
  return block;
}

absl::Status DeviceStorage::RecordUse(StreamId stream) {
  const c10::intrusive_ptr<c10::StorageImpl> storage = storage_.lock();
  if (!storage || address_.load() == nullptr || !IsOurs(*storage)) {
    return absl::OkStatus();
  }
  return memory_.RecordUse(storage->_mutable_data_ptr_no_checks(), stream);
}

bool DeviceStorage::Refuse(const std::string& text) {
  const c10::intrusive_ptr<c10::StorageImpl> storage = storage_.lock();
  if (storage && IsOurs(*storage)) Arm(*storage, text);
  return kCanDisarm<c10::StorageImpl>;
}

void DeviceStorage::Forgive() {
  const c10::intrusive_ptr<c10::StorageImpl> storage = storage_.lock();
  if (storage && IsOurs(*storage)) Disarm(*storage);
}

}  // namespace terrace
