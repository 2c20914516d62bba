#include "libtorch/accelerator/device_work.h"

#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "libtorch/accelerator/guarded.h"

namespace terrace {
namespace {

at::Tensor Bytes(const std::byte* address, int64_t bytes, c10::Device device) {
  return at::for_blob(const_cast<std::byte*>(address), {bytes})
      .options(at::TensorOptions(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

}  // namespace

absl::StatusOr<std::shared_ptr<DeviceWork>> DeviceWork::Create(
    c10::Device device) {
  int count = 0;
  const absl::Status known = Guarded(device, [&] {
    count = c10::impl::VirtualGuardImpl(device.type()).deviceCount();
  });
  const bool is_there = known.ok() && !device.is_cpu() && device.has_index() &&
                        device.index() < count;
  if (!is_there) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", device.str(),
                     "' is no device of an accelerator that LibTorch "
                     "has here, with its number"));
  }
  try {
    return std::shared_ptr<DeviceWork>(new DeviceWork(device));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no thread for ", device.str(), ": ", error.what()));
  }
}

void DeviceWork::NoteLease(StreamUses& uses) {
  if (rules_.Has(StreamRule::kLeaseIsAUse)) NoteUse(uses);
}

absl::Status DeviceWork::Copy(std::byte* target, const std::byte* source,
                              int64_t bytes, StreamUses& uses,
                              const c10::DataPtr* recorded) {
  return Guarded(device(), [&] {
    const at::NoGradGuard without_graph;
    const at::DisableRecordFunctionGuard without_observers;
    const c10::DeviceGuard guard(device());
    const StreamId stream = streams_->CurrentStream();
    uses.Note(stream);
    Bytes(target, bytes, device())
        .copy_(Bytes(source, bytes, device()), /*non_blocking=*/true);
    const bool is_recorded =
        recorded != nullptr && rules_.Has(StreamRule::kTakenBlockIsRecorded);
    if (!is_recorded) return;
    c10::getDeviceAllocator(device().type())
        ->recordStream(*recorded, streams_->StreamOf(stream));
  });
}

absl::StatusOr<c10::DataPtr> DeviceWork::Allocate(int64_t bytes) {
  c10::DataPtr memory;
  const absl::Status status = Guarded(device(), [&] {
    const c10::DeviceGuard guard(device());
    memory = c10::GetAllocator(device().type())
                 ->allocate(static_cast<size_t>(bytes));
  });
  if (!status.ok()) return status;
  return memory;
}

absl::Status DeviceWork::Await(const StreamUses& uses) {
  TERRACE_ASSIGN_OR_RETURN(const DeviceEvents events, uses.Events(*streams_));
  absl::Status status;
  for (const std::shared_ptr<DeviceEvent>& event : events) {
    status.Update(streams_->WaitToTheEnd(*event));
  }
  return status;
}

void DeviceWork::After(StreamUses& uses, EventThread::Done done) {
  absl::StatusOr<DeviceEvents> events = uses.TakeEvents(*streams_);
  // One call that failed says nothing about the next.
  if (!events.ok()) events = uses.TakeEvents(*streams_);
  if (events.ok()) return thread_.After(*std::move(events), std::move(done));
  thread_.After({}, [why = events.status(), done = std::move(done)](
                        const absl::Status&) mutable { done(why); });
}

}  // namespace terrace
