#include "libtorch/accelerator/raw_copy.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>

#include "libtorch/accelerator/guarded.h"

namespace terrace {
namespace {

// What the program has around operations of its own.
const c10::DispatchKeySet kOfPrograms({
    c10::DispatchKey::Python,
    c10::DispatchKey::PythonTLSSnapshot,
    c10::DispatchKey::PreDispatch,
    c10::DispatchKey::Functionalize,
    c10::DispatchKey::FuncTorchDynamicLayerBackMode,
    c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
});

struct Unseen {
  const at::NoGradGuard without_graph;
  const at::DisableRecordFunctionGuard without_observers;
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard without_modes{kOfPrograms};
};

at::Tensor BytesAt(RawPlace place, int64_t bytes) {
  return at::for_blob(place.address, {bytes})
      .options(at::TensorOptions(at::kByte).device(place.device))
      .target_device(place.device)
      .make_tensor();
}

}  // namespace

absl::Status CopyRaw(RawPlace target, RawPlace source, int64_t bytes,
                     bool is_waited_for) {
  if (target.device.is_cpu() && source.device.is_cpu()) {
    std::memcpy(target.address, source.address, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  const c10::Device device =
      target.device.is_cpu() ? source.device : target.device;
  return Guarded(device, [&] {
    const Unseen unseen;
    const c10::DeviceGuard guard(device);
    BytesAt(target, bytes)
        .copy_(BytesAt(source, bytes), /*non_blocking=*/!is_waited_for);
    const bool is_within = !target.device.is_cpu() && !source.device.is_cpu();
    if (!is_waited_for || !is_within) return;
    c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
  });
}

absl::StatusOr<c10::DataPtr> AllocateRaw(c10::Device device, int64_t bytes) {
  c10::DataPtr memory;
  const absl::Status status = Guarded(device, [&] {
    const c10::DeviceGuard guard(device);
    memory =
        c10::GetAllocator(device.type())->allocate(static_cast<size_t>(bytes));
  });
  if (!status.ok()) return status;
  return memory;
}

absl::Status AwaitDevice(c10::Device device) {
  if (device.is_cpu()) return absl::OkStatus();
  return Guarded(device, [&] {
    c10::impl::VirtualGuardImpl(device.type())
        .synchronizeDevice(device.index());
  });
}

}  // namespace terrace
