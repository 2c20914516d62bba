// Operators of the device that move no data or need no CPU kernel, and the
// queue for all others that have one.
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <string>
#include <tuple>

#include "tests/support/accelerator/torch/accelerator.h"
#include "tests/support/accelerator/torch/accelerator_allocator.h"
#include "tests/support/accelerator/torch/queued_operator.h"
#include "tests/support/accelerator/torch/storages.h"
#include "tests/support/accelerator/torch/tensor_copies.h"

namespace terrace {
namespace {

using c10::IntArrayRef;

// The highest backend counts. LibTorch moves parameters in place, as to a GPU,
// between backends of a list that this device is not in: so its tensors name
// one of them too.
constexpr c10::DispatchKeySet kKeys =
    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1) |
    c10::DispatchKeySet(c10::BackendComponent::MTIABit);

c10::Device DeviceOr(std::optional<c10::Device> device) {
  return AcceleratorDevice(device && device->has_index()
                               ? device->index()
                               : CurrentAcceleratorDevice());
}

void CheckOptions(std::optional<at::Layout> layout,
                  std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false),
              "testdev: memory of the CPU alone can be pinned");
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided,
              "testdev: tensors are strided, not ", *layout);
}

at::Tensor Empty(IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout,
                 std::optional<c10::Device> device,
                 std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> format) {
  CheckOptions(layout, pin_memory);
  const c10::DeviceGuard guard(DeviceOr(device));
  return at::detail::empty_generic(size, &AcceleratorAllocator(), kKeys,
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor EmptyStrided(IntArrayRef size, IntArrayRef stride,
                        std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout> layout,
                        std::optional<c10::Device> device,
                        std::optional<bool> pin_memory) {
  CheckOptions(layout, pin_memory);
  const c10::DeviceGuard guard(DeviceOr(device));
  return at::detail::empty_strided_generic(size, stride,
                                           &AcceleratorAllocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

const at::Tensor& Resize(const at::Tensor& self, IntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  ResizeDeviceTensor(self, size);
  if (format) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve,
                "testdev: resize_ preserves no memory format");
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return self;
}

at::Tensor& SetStorage(at::Tensor& self, at::Storage source, int64_t offset,
                       IntArrayRef size, IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  ResizeDeviceTensor(self, size,
                     stride.data() == nullptr ? std::optional<IntArrayRef>()
                                              : std::optional(stride));
  return self;
}

at::Tensor& SetEmpty(at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  at::Storage storage(c10::Storage::use_byte_size_t(), 0,
                      &AcceleratorAllocator(), /*resizable=*/true);
  return SetStorage(self, std::move(storage), 0, {0}, {});
}

at::Tensor CopyAndResize(const at::Tensor& self, const at::Tensor& target) {
  at::native::resize_output(target, self.sizes());
  return CopyTensor(self, target, /*non_blocking=*/false);
}

void RecordStream(at::Tensor& self, c10::Stream stream) {
  AcceleratorAllocator().recordStream(self.storage().data_ptr(), stream);
}

// The CPU's would draw from the CPU's generator.
std::tuple<at::Tensor, at::Tensor> Dropout(const at::Tensor& input, double p,
                                           std::optional<bool> is_training) {
  const auto mask_options = input.options().dtype(at::kBool);
  if (!is_training.value_or(true) || p == 0) {
    return {input.clone(), at::ones_like(input, mask_options)};
  }
  at::Tensor mask = at::empty_like(input, mask_options).bernoulli_(1 - p);
  const double scale = p == 1 ? 0 : 1 / (1 - p);
  return {input.mul(mask).mul_(scale), mask};
}

// A GPU counts whole numbers too, the CPU's kernel does not.
void QueueHistogram(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  c10::IValue& self = stack->at(stack->size() - 4);
  const at::ScalarType dtype = self.toTensor().scalar_type();
  const bool is_whole = at::isIntegralType(dtype, /*includeBool=*/false);
  if (is_whole) self = self.toTensor().to(at::kDouble);
  QueueOperator(op, stack);
  if (is_whole) stack->back() = stack->back().toTensor().to(dtype);
}

void QueueAllOthers(torch::Library& library) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findOp(name);
    // Convolutions have none of the CPU's own, and choose one within.
    const bool has_kernel =
        op && (op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
               name.name == "aten::convolution" ||
               name.name == "aten::convolution_backward");
    if (!has_kernel ||
        op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      continue;
    }
    const std::string full = name.overload_name.empty()
                                 ? name.name
                                 : name.name + "." + name.overload_name;
    library.impl(full.c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&QueueOperator>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(Empty));
  library.impl("empty_strided", TORCH_FN(EmptyStrided));
  library.impl("resize_", TORCH_FN(Resize));
  library.impl("set_.source_Storage",
               static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(
                   &at::native::set_));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(SetStorage));
  library.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  library.impl("set_", TORCH_FN(SetEmpty));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  library.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  library.impl("is_set_to", TORCH_FN(at::native::is_set_to));
  library.impl("_copy_from", TORCH_FN(CopyTensor));
  library.impl("_copy_from_and_resize", TORCH_FN(CopyAndResize));
  library.impl("record_stream", TORCH_FN(RecordStream));
  library.impl("native_dropout", TORCH_FN(Dropout));
  library.impl("histc",
               torch::CppFunction::makeFromBoxedFunction<&QueueHistogram>());
  QueueAllOthers(library);
}

}  // namespace terrace
