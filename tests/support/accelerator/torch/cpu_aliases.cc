#include "tests/support/accelerator/torch/cpu_aliases.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "tests/support/accelerator/torch/accelerator.h"

namespace terrace {
namespace {

c10::Storage StorageAt(std::byte* base, size_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes,
      c10::DataPtr(base, c10::DeviceType::CPU), /*allocator=*/nullptr,
      /*resizable=*/false);
}

// How the kernels see it beside its sizes.
void CopyMarks(const at::Tensor& from, at::Tensor& to) {
  to._set_conj(from.is_conj());
  to._set_neg(from.is_neg());
  if (from.unsafeGetTensorImpl()->is_wrapped_number()) {
    to.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
}

at::Tensor CpuTensorIn(const at::Tensor& like, c10::Storage storage) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
      like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(
      like.sizes(), like.strides(), like.storage_offset());
  CopyMarks(like, made);
  return made;
}

}  // namespace

AddressRange BytesOf(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  int64_t last = 0;
  for (int64_t at = 0; at < tensor.dim(); ++at) {
    last += (tensor.size(at) - 1) * tensor.stride(at);
  }
  const auto begin =
      reinterpret_cast<uintptr_t>(tensor.storage().data()) +
      static_cast<uintptr_t>(tensor.storage_offset()) * tensor.itemsize();
  return {begin, begin + (static_cast<uintptr_t>(last) + 1) *
                             static_cast<uintptr_t>(tensor.itemsize())};
}

at::Tensor CpuTensorAt(const at::Tensor& like, std::byte* base) {
  return CpuTensorIn(like, StorageAt(base, like.storage().nbytes()));
}

at::Tensor MetaTensorLike(const at::Tensor& like) {
  at::Tensor made = at::detail::empty_strided_meta(like.sizes(), like.strides(),
                                                   like.scalar_type());
  CopyMarks(like, made);
  return made;
}

c10::IValue WithTensors(const c10::IValue& value, const TensorChange& change) {
  const auto changed = [&](const at::Tensor& tensor) {
    return tensor.defined() ? change(tensor) : tensor;
  };
  if (value.isTensor()) return changed(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(changed(tensor));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor :
         value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional(changed(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

bool HasTensors(const c10::IValue& value) {
  return value.isTensor() || value.isTensorList() ||
         value.isOptionalTensorList();
}

at::Tensor CpuAliases::Of(const at::Tensor& tensor, bool is_written,
                          bool is_copied) {
  const auto known = tensors_.find(tensor.unsafeGetTensorImpl());
  at::Tensor alias;
  if (known != tensors_.end()) {
    alias = known->second;
  } else if (tensor.is_cpu()) {
    TORCH_CHECK(!is_written && (tensor.dim() == 0 || is_copied),
                "testdev: expected all tensors on the same device, and one of ",
                tensor.sizes(), " is on the CPU");
    alias = tensor.clone();
    CopyMarks(tensor, alias);
  } else {
    alias = OfDevice(tensor);
  }
  tensors_.emplace(tensor.unsafeGetTensorImpl(), alias);
  if (tensor.is_privateuseone()) NoteTouch({BytesOf(tensor), is_written});
  return alias;
}

void CpuAliases::NoteTouch(const Touch& touch) {
  for (Touch& known : touches_) {
    if (known.bytes.begin == touch.bytes.begin &&
        known.bytes.end == touch.bytes.end) {
      known.is_write = known.is_write || touch.is_write;
      return;
    }
  }
  touches_.push_back(touch);
}

at::Tensor CpuAliases::OfDevice(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_privateuseone() && tensor.has_storage(),
              "testdev: a tensor of ", tensor.device(), " and ",
              tensor.layout(), " is not taken");
  const c10::Storage& storage = tensor.storage();
  const void* const base = storage.data();  // throws what is armed
  TORCH_CHECK(base != nullptr || tensor.numel() == 0, "testdev: a tensor of ",
              tensor.sizes(), " has no memory");
  const auto [known, is_new] =
      storages_.try_emplace(storage.unsafeGetStorageImpl());
  if (is_new) {
    known->second = StorageAt(TheAccelerator().Twin(base), storage.nbytes());
  }
  return CpuTensorIn(tensor, known->second);
}

}  // namespace terrace
