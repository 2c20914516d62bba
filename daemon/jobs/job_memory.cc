#include "daemon/jobs/job_memory.h"

#include "base/bytes.h"
#include "base/status_macros.h"

namespace terrace {

absl::StatusOr<int64_t> JobMemory::Take(int64_t size_bytes) {
  TERRACE_RETURN_IF_ERROR(Charged(size_bytes));
  absl::StatusOr<int64_t> offset = spill_.Take(size_bytes);
  if (!offset.ok()) charge_->Give(size_bytes);
  return offset;
}

void JobMemory::Restore(int64_t growth_bytes, int64_t spill_bytes) {
  charged_bytes_ += growth_bytes;
  restorable_bytes_ = spill_bytes;
}

void JobMemory::EndTakeAt() {
  if (!keeps_) spill_.EmptyFree();
  charge_->Give(std::exchange(restorable_bytes_, 0));
}

bool JobMemory::TakeAt(const Extent& range) {
  if (range.size_bytes > restorable_bytes_ || !spill_.TakeAt(range)) {
    return false;
  }
  restorable_bytes_ -= range.size_bytes;
  return true;
}

absl::Status JobMemory::Charged(int64_t bytes) {
  absl::Status charged = charge_->Take(bytes);
  if (!charged.ok()) charge_->NoteRefused(charged);
  return charged;
}

void JobMemory::Give(const Extent& range) {
  if (has_leaked_) return;
  if (keeps_) {
    charged_bytes_ += range.size_bytes;
    return;
  }
  spill_.Give(range);
  charge_->Give(range.size_bytes);
}

void JobMemory::Leak() {
  has_leaked_ = true;
  spill_.Leak();
}

absl::Status JobMemory::GrowMemory(LocalRuntime& runtime, int64_t bytes,
                                   ImageFile* image) {
  // What is more than there can be the runtime refuses.
  constexpr int64_t kMost = INT64_MAX / 4;
  if (bytes <= 0 || bytes > kMost) return runtime.GrowMemory(bytes);
  const int64_t whole = RoundUp(bytes, kBlockBytes);
  const absl::Status charged = charge_->Await(whole);
  if (!charged.ok()) {
    charge_->NoteRefused(charged);
    return charged;
  }
  const size_t before = runtime.arena().bytes().size();
  // Before a tensor lies there.
  if (image != nullptr)
    image->SetUsedBytes(static_cast<int64_t>(before) + whole);
  absl::Status grown = runtime.GrowMemory(bytes);
  // A runtime that closes may refuse what has its pages already.
  const auto added =
      static_cast<int64_t>(runtime.arena().bytes().size() - before);
  charged_bytes_ += added;
  if (image != nullptr)
    image->SetUsedBytes(static_cast<int64_t>(before) + added);
  if (added < whole) charge_->Give(whole - added);
  return grown;
}

}  // namespace terrace
