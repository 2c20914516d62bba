#include "libtorch/hook/placed_tensors.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/io_fault.h"
#include "libtorch/hook/managed_storages.h"
#include "libtorch/hook/operation_net.h"

namespace terrace {

PlacedTensors::~PlacedTensors() {
  if (listens_) OperationNet::Get().EndListening();
}

void PlacedTensors::ListenToUses() {
  {
    OrderedLock lock(mutex_);
    if (std::exchange(listens_, true)) return;
  }
  OperationNet::Get().BeginListening();
}

void PlacedTensors::Adopt(const at::Tensor& tensor) {
  if (storages_->Find(tensor) != nullptr) return;  // by another of its views
  // Of all hooks: several may be over one Runtime.
  static std::atomic<int64_t> number = 0;
  const std::string name = absl::StrCat("placed tensor ", ++number);
  const absl::StatusOr<std::shared_ptr<ManagedStorage>> added =
      storages_->AddNumbered({name, tensor}, /*number=*/-1,
                             storages_->window().room().most_bytes());
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  if (!added.ok()) {
    const absl::Status& why = added.status();
    storages_->NoteError(
        Reworded(why, absl::StrCat("'", name, "' ", FormatBytes(bytes), ": ",
                                   why.message())));
  }
  OrderedLock lock(mutex_);
  if (added.ok() && *added != nullptr) {
    ++stats_.tensors;
    stats_.bytes += bytes;
  } else {
    ++stats_.left_tensors;
    stats_.left_bytes += bytes;
  }
}

PlacedStats PlacedTensors::stats() const {
  OrderedLock lock(mutex_);
  return stats_;
}

}  // namespace terrace
