#include "libtorch/offload/weights/storage_exchange.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>

#include "absl/container/flat_hash_set.h"

namespace terrace {
namespace {

// Takes `one` from a tensor, which gets an empty weak pointer for it. The type
// of this pointer is LibTorch's own in later versions, and the standard
// library's in earlier ones.
template <typename Weak, typename Owner>
void SetNone(void (*set)(const at::Tensor&, Weak), const at::Tensor& tensor,
             const Owner& /*one*/) {
  set(tensor, Weak(Owner()));
}

}  // namespace

std::string ExchangeFault(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || !tensor.has_storage() ||
      tensor.is_quantized()) {
    return "is not dense";
  }
  if (tensor.is_conj() || tensor.is_neg() || tensor._is_zerotensor()) {
    return "is a lazy view without values of its own";
  }
  if (!tensor.is_leaf()) return "is no leaf";
  if (tensor.numel() > 0 &&
      at::detail::computeStorageNbytes(
          tensor.sizes(), tensor.strides(), tensor.element_size(),
          tensor.storage_offset()) > tensor.storage().nbytes()) {
    return "has elements beyond its storage";
  }
  return "";
}

std::vector<at::Tensor> WithBases(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> all;
  absl::flat_hash_set<const c10::TensorImpl*> seen;
  const auto add = [&](const at::Tensor& tensor) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) all.push_back(tensor);
  };
  for (const at::Tensor& tensor : tensors) {
    add(tensor);
    if (!tensor.is_view()) continue;
    const at::Tensor base{at::TensorBase(tensor._base())};
    if (base.is_alias_of(tensor)) add(base);
  }
  return all;
}

c10::Storage MakeStorage(int64_t size_bytes, c10::Device device) {
  return at::empty({size_bytes}, at::TensorOptions(at::kByte).device(device))
      .storage();
}

at::Tensor OverStorage(const c10::Storage& storage, const at::Tensor& like) {
  const c10::InferenceMode mode(like.is_inference());
  const at::Tensor none = at::empty(
      {0}, at::TensorOptions(like.scalar_type()).device(storage.device()));
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), none.key_set(), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(
      like.sizes(), like.strides(), like.storage_offset());
  return made;
}

void Exchange(const at::Tensor& tensor, const at::Tensor& made) {
  namespace autograd = ::torch::autograd::impl;
  if (tensor.grad().defined()) tensor.mutable_grad().reset();
  // An accumulator that a graph still has would take gradients of the old
  // device.
  const auto accumulator = autograd::try_get_grad_accumulator(tensor);
  if (accumulator != nullptr) {
    SetNone(&autograd::set_grad_accumulator, tensor, accumulator);
  }
  tensor.unsafeGetTensorImpl()->shallow_copy_from(made.getIntrusivePtr());
}

}  // namespace terrace
