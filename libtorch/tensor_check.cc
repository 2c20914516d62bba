#include "libtorch/tensor_check.h"

#include "absl/strings/str_cat.h"
#include "libtorch/hook/managed_storage.h"
#include "libtorch/hook/operation_net.h"
#include "libtorch/torch_device.h"

namespace terrace {
namespace {

// A subclass in Python may have none, and a null pointer in its place.
bool HasMemory(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  if (!tensor.has_storage()) return false;
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  return storage->_mutable_data_ptr_no_checks().get() != nullptr;
}

}  // namespace

std::optional<DType> DTypeOf(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kHalf:
      return DType::kFloat16;
    default:
      return std::nullopt;
  }
}

bool IsOffloaded(const at::Tensor& tensor) {
  return OperationNet::Get().Find(tensor) != nullptr;
}

std::string OffloadedName(const at::Tensor& tensor) {
  const ManagedStorage* const managed = OperationNet::Get().Find(tensor);
  return managed == nullptr ? "" : managed->name();
}

std::string PlaceFault(const at::Tensor& tensor, OffloadedTensors offloaded) {
  if (!tensor.defined()) return "is undefined";
  if (tensor.layout() != at::kStrided) {
    return absl::StrCat("is ", TextOf(tensor.layout()),
                        "; only dense tensors can be stepped");
  }
  if (!CanStepOn(tensor.device())) {
    return absl::StrCat("is on ", tensor.device().str(),
                        "; only memory of the CPU and of an accelerator is "
                        "supported");
  }
  if (tensor.is_neg() || tensor.is_conj() || tensor._is_zerotensor()) {
    return "is a lazy view without values of its own";
  }
  if (IsOffloaded(tensor)) {
    return offloaded == OffloadedTensors::kTaken
               ? ""
               : "is offloaded, and cannot be used in place; close its Offload "
                 "first";
  }
  if (!HasMemory(tensor)) {
    return "wraps other tensors and has no memory of its own";
  }
  return "";
}

std::string StorageFault(const at::Tensor& tensor, OffloadedTensors offloaded) {
  const std::string fault = PlaceFault(tensor, offloaded);
  if (!fault.empty() || DTypeOf(tensor)) return fault;
  return absl::StrCat("is ", TextOf(tensor.scalar_type()),
                      "; only float32, bfloat16 and float16 are supported");
}

at::Tensor WithOwnValues(at::Tensor tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) return tensor;
  if (tensor._is_zerotensor()) return tensor.clone();
  return tensor.is_neg() ? tensor.resolve_neg() : tensor;
}

}  // namespace terrace
