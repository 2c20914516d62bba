#include "libtorch/step/late/refused_storages.h"

#include <c10/core/Storage.h>
#include <torch/headeronly/version.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/io_fault.h"
#include "libtorch/hook/compat.h"
#include "libtorch/hook/managed_storage.h"
#include "libtorch/hook/operation_net.h"

namespace terrace {
namespace {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 12
// LibTorch 2.11 has no call that takes a message off, but an explicit
// instantiation may name the member that says that there is one.
struct HasMessage {
  friend bool c10::StorageImpl::*MemberOf(HasMessage);
};
template <bool c10::StorageImpl::*kMember>
struct Opened {
  friend bool c10::StorageImpl::*MemberOf(HasMessage) { return kMember; }
};
template struct Opened<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

void TakeMessageOff(c10::StorageImpl& storage) {
  storage.*MemberOf(HasMessage()) = false;
  storage.get_extra_meta().custom_data_ptr_error_msg_.reset();
}
#else
void TakeMessageOff(c10::StorageImpl& storage) { Disarm(storage); }
#endif

// Returns a storage with the tensor's bytes where the tensor's own storage
// cannot be used again, or an empty one where it can. After an error the
// storage stays refused until it is not in use, or its bytes can be brought.
absl::StatusOr<c10::Storage> Usable(const at::Tensor& tensor) {
  const c10::Storage storage = tensor.storage();
  c10::StorageImpl& old = *storage.unsafeGetStorageImpl();
  if (ManagedStorage* const managed = OperationNet::Get().Find(&old)) {
    if (managed->Unbar()) return c10::Storage();
    const std::string name = managed->name();
    const absl::Status status = managed->owner().Replace(*managed, tensor);
    if (status.ok()) return tensor.storage();
    return Reworded(status,
                    absl::StrCat("'", name, "' is updated and cannot be used ",
                                 "again yet: ", status.message()));
  }
  // A storage that is not managed any more may be refused for another reason.
  const bool is_gone =
      old.nbytes() > 0 && old._mutable_data_ptr_no_checks().get() == nullptr;
  if (!is_gone) TakeMessageOff(old);
  return c10::Storage();
}

c10::StorageImpl* StorageOf(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  return tensor.storage().unsafeGetStorageImpl();
}

}  // namespace

absl::Status RestoreRefused(PendingStorages& pending, TensorsOfStep tensors) {
  const std::vector<const void*> keys = pending.TakeRefused();
  if (keys.empty()) return absl::OkStatus();
  const absl::flat_hash_set<const void*> refused(keys.begin(), keys.end());
  absl::flat_hash_map<const void*, c10::Storage> renewed;
  absl::Status first;
  for (const at::Tensor& tensor : tensors()) {
    c10::StorageImpl* const key = StorageOf(tensor);
    if (key == nullptr || !refused.contains(key)) continue;
    const auto [found, is_new] = renewed.try_emplace(key);
    if (is_new) {
      auto usable = Usable(tensor);
      if (usable.ok()) {
        found->second = *std::move(usable);
      } else {
        first.Update(usable.status());
        pending.SetRefused(key);
      }
    }
    if (!found->second) continue;
    tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(found->second);
  }
  return first;
}

void RestoreRefusedLater(PendingStorages& pending, TensorsOfStep tensors) {
  for (const void* const key : pending.TakeRefused()) {
    ManagedStorage* const managed = OperationNet::Get().Find(key);
    if (managed == nullptr) continue;
    std::vector<StorageOwner::WeakTensor> weak;
    for (const at::Tensor& tensor : tensors()) {
      if (StorageOf(tensor) == key) weak.emplace_back(tensor.getIntrusivePtr());
    }
    managed->Bar(absl::StrCat(
        "terrace: '", managed->name(),
        "' was leased as its update, which had failed, was given up; it can "
        "be used again once its lease has ended"));
    managed->owner().ReplaceLater(managed->self(), std::move(weak));
  }
}

}  // namespace terrace
