#include "libtorch/accelerator/device_work.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "libtorch/accelerator/guarded.h"
#include "libtorch/accelerator/raw_copy.h"

namespace terrace {

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

void DeviceWork::NoteUse(StreamUses& uses, StreamId stream) {
  const StreamUses::Noted noted = uses.Note(stream);
  if (!noted.is_new) return;
  Know(stream);
  if (noted.filled == nullptr) return;
  const absl::Status ordered = streams_->Order(*noted.filled, stream);
  // What cannot be ordered is waited for.
  if (!ordered.ok()) streams_->Wait(*noted.filled).IgnoreError();
}

absl::Status DeviceWork::Fill(std::byte* target, const std::byte* source,
                              int64_t bytes, StreamUses& uses,
                              const c10::DataPtr* recorded) {
  const StreamId stream = streams_->CurrentStream();
  Know(stream);
  TERRACE_RETURN_IF_ERROR(CopyRaw({target, device()},
                                  {const_cast<std::byte*>(source), device()},
                                  bytes, /*is_waited_for=*/false));
  absl::StatusOr<std::shared_ptr<DeviceEvent>> filled =
      streams_->Record(stream);
  if (filled.ok()) {
    uses.NoteFill(*std::move(filled), stream);
  } else {  // then it is waited for
    uses.Note(stream);
    TERRACE_RETURN_IF_ERROR(streams_->WaitForAll());
  }
  const bool is_recorded =
      recorded != nullptr && rules_.Has(StreamRule::kTakenBlockIsRecorded);
  if (!is_recorded) return absl::OkStatus();
  return Guarded(device(), [&] {
    auto* const allocator = c10::getDeviceAllocator(device().type());
    for (const StreamId each : known()) {
      allocator->recordStream(*recorded, streams_->StreamOf(each));
    }
  });
}

absl::Status DeviceWork::CopyOut(std::byte* target, std::byte* source,
                                 int64_t bytes, const StreamUses& uses) {
  TERRACE_RETURN_IF_ERROR(Await(uses));
  return CopyRaw({target, device()}, {source, device()}, bytes,
                 /*is_waited_for=*/true);
}

absl::Status DeviceWork::Await(const StreamUses& uses) {
  TERRACE_ASSIGN_OR_RETURN(const DeviceEvents events, uses.Events(*streams_));
  absl::Status status;
  for (const std::shared_ptr<DeviceEvent>& event : events) {
    status.Update(streams_->Wait(*event));
  }
  return status;
}

void DeviceWork::After(StreamUses& uses, EventThread::Done done) {
  absl::StatusOr<DeviceEvents> events = uses.TakeEvents(*streams_);
  // One call that failed says nothing about the next.
  if (!events.ok()) events = uses.TakeEvents(*streams_);
  if (events.ok()) return thread_.After(*std::move(events), std::move(done));
  thread_.AfterAll(events.status(), std::move(done));
}

std::vector<StreamId> DeviceWork::known() const {
  MutexLock lock(mutex_);
  return known_;
}

void DeviceWork::Know(StreamId stream) {
  MutexLock lock(mutex_);
  if (!absl::c_linear_search(known_, stream)) known_.push_back(stream);
}

}  // namespace terrace
