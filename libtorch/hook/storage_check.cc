#include "libtorch/hook/storage_check.h"

#include <ATen/MapAllocator.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/COW.h>

#include <exception>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "libtorch/hook/placement/made_by_libtorch.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

bool IsShared(const c10::DataPtr& data) {
  if (at::RefcountedMapAllocator::fromDataPtr(data) != nullptr) return true;
  const at::MapAllocator* const map = at::MapAllocator::fromDataPtr(data);
  return map != nullptr &&
         (map->flags() &
          (at::ALLOCATOR_MAPPED_SHARED | at::ALLOCATOR_MAPPED_SHAREDMEM)) != 0;
}

}  // namespace

c10::StorageImpl* StorageOf(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

std::string FaultOf(const at::Tensor& tensor, c10::Device device,
                    int64_t budget_bytes) {
  if (tensor.device() != device) {
    return absl::StrCat("is on ", tensor.device().str(), "; only ",
                        device.is_cpu() ? "CPU memory" : device.str(),
                        " is managed");
  }
  if (tensor.layout() != at::kStrided || !tensor.has_storage()) {
    return "is not dense, or has no storage";
  }
  c10::StorageImpl& storage = *StorageOf(tensor);
  if (storage.nbytes() > 0 &&
      storage._mutable_data_ptr_no_checks().get() == nullptr) {
    return "wraps other tensors and has no memory of its own";
  }
  if (IsShared(storage._mutable_data_ptr_no_checks())) {
    return "is in memory shared with other processes";
  }
  const auto size = static_cast<int64_t>(storage.nbytes());
  if (ResidentBytes(size) > budget_bytes) {
    return absl::StrCat("has ", FormatBytes(size), ", and the budget is ",
                        FormatBytes(budget_bytes));
  }
  return "";
}

bool IsOrdinary(c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  if (storage.nbytes() == 0) return false;
  if (data.device().is_cpu()) return IsMadeByLibTorch(data);
  // An allocator without one gives each block an end of its own.
  const c10::DeleterFnPtr end =
      c10::GetAllocator(data.device().type())->raw_deleter();
  return end != nullptr && data.get_deleter() == end;
}

absl::Status Materialize(const std::string& name, c10::StorageImpl& storage) {
  if (!c10::impl::cow::is_cow_data_ptr(storage._mutable_data_ptr_no_checks())) {
    return absl::OkStatus();
  }
  try {
    storage.mutable_data();
  } catch (const std::exception& error) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "tensor '", name, "': no memory for its own bytes: ", error.what()));
  }
  return absl::OkStatus();
}

}  // namespace terrace
