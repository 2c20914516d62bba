#include "libtorch/step/late/refused_storage.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libtorch/hook/compat.h"
#include "libtorch/hook/managed_storage.h"
#include "libtorch/hook/operation_net.h"

namespace terrace {
namespace {

// Counts no strong reference, which may take Python's lock.
c10::weak_intrusive_ptr<c10::StorageImpl> WeakOf(c10::StorageImpl& storage) {
  auto strong = c10::intrusive_ptr<c10::StorageImpl>::reclaim(&storage);
  c10::weak_intrusive_ptr<c10::StorageImpl> weak(strong);
  static_cast<void>(strong.release());  // it is the caller's
  return weak;
}

}  // namespace

RefusedStorage::RefusedStorage(c10::StorageImpl& storage,
                               const absl::Status& why)
    : storage_(WeakOf(storage)) {
  std::string text = absl::StrCat("terrace: ", why.message());
  ManagedStorage* const managed = OperationNet::Get().Find(&storage);
  if (managed == nullptr) {
    Arm(storage, std::move(text));
  } else {
    managed->owner().OnRefused(why);
    managed->Bar(std::move(text));
  }
}

void RefusedStorage::TakeBack() const {
  const c10::intrusive_ptr<c10::StorageImpl> storage = storage_.lock();
  if (!storage) return;
  ManagedStorage* const managed = OperationNet::Get().Find(storage.get());
  if (managed != nullptr) return managed->Unbar();
  // A storage that was left without bytes is refused for that.
  const bool is_gone = storage->nbytes() > 0 &&
                       storage->_mutable_data_ptr_no_checks().get() == nullptr;
  if (!is_gone) Disarm(*storage);
}

void TakeRefusalsBack(PendingStorages& pending) {
  for (const auto& refused : pending.TakeRefused()) refused->TakeBack();
}

}  // namespace terrace
