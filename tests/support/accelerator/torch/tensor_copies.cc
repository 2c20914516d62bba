#include "tests/support/accelerator/torch/tensor_copies.h"

#include <c10/core/DeviceGuard.h>

#include <cstring>
#include <vector>

#include "tests/support/accelerator/torch/accelerator.h"
#include "tests/support/accelerator/torch/cpu_aliases.h"

namespace terrace {
namespace {

AcceleratorStream StreamOf(const at::Tensor& tensor) {
  return TheAccelerator().Current(tensor.device().index());
}

const void* BaseOf(const at::Tensor& tensor) { return tensor.storage().data(); }

bool IsPinned(const at::Tensor& tensor) {
  return tensor.numel() > 0 && TheAccelerator().pinned().IsPinned(
                                   reinterpret_cast<uintptr_t>(BaseOf(tensor)));
}

at::Tensor OnDevice(const at::Tensor& tensor) {
  return CpuTensorAt(tensor, TheAccelerator().Twin(BaseOf(tensor)));
}

// Where streams have it: pinned pages have another address for them.
at::Tensor OnCpu(const at::Tensor& tensor) {
  return CpuTensorAt(tensor, TheAccelerator().pinned().Twin(
                                 reinterpret_cast<uintptr_t>(BaseOf(tensor))));
}

void Submit(AcceleratorStream stream, const at::Tensor& source,
            const at::Tensor& target, const at::Tensor& from,
            const at::Tensor& to) {
  std::vector<Touch> touches;
  for (const at::Tensor* const used : {&source, &target}) {
    if (used->is_privateuseone() || IsPinned(*used)) {
      touches.push_back({BytesOf(*used), used == &target});
    }
  }
  TheAccelerator().streams().Submit(stream, "a copy", touches,
                                    [from, to] { to.copy_(from); });
}

void CopyToDevice(const at::Tensor& source, const at::Tensor& target,
                  bool non_blocking) {
  Accelerator& accelerator = TheAccelerator();
  const AcceleratorStream stream = StreamOf(target);
  if (non_blocking && !IsPinned(source)) {
    Submit(stream, target, target, source.clone(), OnDevice(target));
    return;
  }
  Submit(stream, source, target, OnCpu(source), OnDevice(target));
  if (non_blocking) {
    accelerator.pinned().NoteUse({BytesOf(source), /*is_write=*/false}, stream);
  } else {
    accelerator.WaitForStream(stream);
  }
}

void CopyToCpu(const at::Tensor& source, const at::Tensor& target,
               bool non_blocking) {
  Accelerator& accelerator = TheAccelerator();
  const AcceleratorStream stream = StreamOf(source);
  Submit(stream, source, target, OnDevice(source), OnCpu(target));
  if (non_blocking && IsPinned(target)) {
    accelerator.pinned().NoteUse({BytesOf(target), /*is_write=*/true}, stream);
  } else {
    accelerator.WaitForStream(stream);
  }
}

// The source's stream copies, once the target's has come so far, which then
// waits for it.
void CopyBetween(const at::Tensor& source, const at::Tensor& target) {
  DeviceStreams& streams = TheAccelerator().streams();
  const AcceleratorStream from = StreamOf(source);
  const AcceleratorStream to = StreamOf(target);
  if (from != to) streams.Await(from, streams.Record(to));
  Submit(from, source, target, OnDevice(source), OnDevice(target));
  if (from != to) streams.Await(to, streams.Record(from));
}

}  // namespace

at::Tensor CopyTensor(const at::Tensor& source, const at::Tensor& target,
                      bool non_blocking) {
  TORCH_CHECK(source.has_storage() && target.has_storage() &&
                  (source.is_cpu() || source.is_privateuseone()) &&
                  (target.is_cpu() || target.is_privateuseone()),
              "testdev: no copy from ", source.device(), " to ",
              target.device());
  if (target.numel() == 0) return target;
  for (const at::Tensor* const used : {&source, &target}) {
    TORCH_CHECK(BaseOf(*used) != nullptr, "testdev: a tensor of ",
                used->sizes(), " has no memory");
  }
  if (source.is_cpu()) {
    CopyToDevice(source, target, non_blocking);
  } else if (target.is_cpu()) {
    CopyToCpu(source, target, non_blocking);
  } else {
    CopyBetween(source, target);
  }
  return target;
}

void CopyDeviceBytes(void* target, const void* source, size_t bytes) {
  Accelerator& accelerator = TheAccelerator();
  const auto to = reinterpret_cast<uintptr_t>(target);
  const auto from = reinterpret_cast<uintptr_t>(source);
  accelerator.streams().Submit(
      accelerator.Current(CurrentAcceleratorDevice()), "a copy of a storage",
      {{{from, from + bytes}, false}, {{to, to + bytes}, true}},
      [to = accelerator.Twin(target), from = accelerator.Twin(source), bytes] {
        std::memcpy(to, from, bytes);
      });
}

}  // namespace terrace
