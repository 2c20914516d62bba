#include "libtorch/hook/held_bytes.h"

#include <c10/core/impl/COW.h>

#include <exception>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "libtorch/accelerator/raw_copy.h"
#include "libtorch/hook/life/operation_pins.h"
#include "libtorch/hook/managed_storage.h"
#include "libtorch/hook/operation_net.h"
#include "libtorch/hook/window/byte_window.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

void TakeBeside(ManagedStorage& managed, HeldBytes::Use use) {
  if (!use.is_beside) return;
  managed.window().room().TakeBeside(ResidentBytes(managed.size_bytes()));
}

void GiveBeside(ManagedStorage& managed, HeldBytes::Use use) {
  if (!use.is_beside) return;
  managed.window().room().GiveBeside(ResidentBytes(managed.size_bytes()));
}

// Returns null when the storage is not managed. A thread may have several
// HeldBytes, so it pins as a thread that has pins already.
ManagedStorage* PinBeside(c10::StorageImpl& storage, HeldBytes::Use use,
                          std::shared_ptr<const void>& owner) {
  while (ManagedStorage* const found = OperationNet::Get().Find(&storage)) {
    owner = found->keeper();
    TakeBeside(*found, use);
    if (found->word().Pin(/*holds_pins=*/true)) {
      OperationPins::Keep(*found);
      return found;
    }
    GiveBeside(*found, use);
    OperationPins::AwaitLife(*found, /*holds_pins=*/true);
  }
  owner.reset();
  return nullptr;
}

}  // namespace

absl::StatusOr<HeldBytes> HeldBytes::Hold(c10::StorageImpl& storage, Use use) {
  HeldBytes held;
  held.device_ = storage.device();
  ManagedStorage* const managed = PinBeside(storage, use, held.owner_);
  if (managed == nullptr) {
    c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
    if (use.is_written && c10::impl::cow::is_cow_data_ptr(data)) {
      try {
        storage.mutable_data();
      } catch (const std::exception& error) {
        return absl::ResourceExhaustedError(
            absl::StrCat("no memory for bytes of its own: ", error.what()));
      }
    }
    TERRACE_RETURN_IF_ERROR(AwaitDevice(held.device_));
    held.data_ = static_cast<std::byte*>(data.mutable_get());
    if (held.data_ != nullptr || storage.nbytes() == 0) return held;
    return absl::FailedPreconditionError("a storage whose bytes are gone");
  }
  held.managed_ = managed;
  held.is_beside_ = use.is_beside;
  TERRACE_RETURN_IF_ERROR(OperationPins::BringOne(
      *managed,
      use.is_beside ? ByteWindow::Caller::kBeside : ByteWindow::Caller::kCopy));
  TERRACE_RETURN_IF_ERROR(managed->AwaitUses());
  if (use.is_written) managed->MarkWritten();
  held.data_ = managed->data();
  return held;
}

absl::Status HeldBytes::CopyTo(void* target, int64_t offset,
                               int64_t bytes) const {
  return CopyRaw({target, c10::kCPU}, {data_ + offset, device_}, bytes,
                 /*is_waited_for=*/true);
}

absl::Status HeldBytes::CopyFrom(const void* source, int64_t offset,
                                 int64_t bytes) const {
  return CopyRaw({data_ + offset, device_},
                 {const_cast<void*>(source), c10::kCPU}, bytes,
                 /*is_waited_for=*/true);
}

HeldBytes::~HeldBytes() {
  if (managed_ == nullptr) return;
  // In a forked child any lock of it may be held for ever.
  if (managed_->is_parents()) return;
  if (managed_->is_on_device()) managed_->NoteLease();
  // The storage may go as soon as it is not pinned.
  ByteWindow& window = managed_->window();
  const int64_t bytes = ResidentBytes(managed_->size_bytes());
  OperationPins::EndKeeping(*managed_);
  if (is_beside_) window.room().GiveBeside(bytes);
}

}  // namespace terrace
