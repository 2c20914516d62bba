#include "daemon/jobs/job_memory.h"

#include "base/bytes.h"
#include "base/status_macros.h"

namespace terrace {

absl::StatusOr<int64_t> JobMemory::Take(int64_t size_bytes) {
  TERRACE_RETURN_IF_ERROR(charge_->Take(size_bytes));
  absl::StatusOr<int64_t> offset = spill_.Take(size_bytes);
  if (!offset.ok()) charge_->Give(size_bytes);
  return offset;
}

void JobMemory::Give(const Extent& range) {
  if (keeps_) {
    charged_bytes_ += range.size_bytes;
    return;
  }
  spill_.Give(range);
  charge_->Give(range.size_bytes);
}

absl::Status JobMemory::GrowMemory(Runtime& runtime, int64_t bytes) {
  // What is more than there can be the runtime refuses.
  constexpr int64_t kMost = INT64_MAX / 4;
  if (bytes <= 0 || bytes > kMost) return runtime.GrowMemory(bytes);
  const int64_t whole = RoundUp(bytes, kBlockBytes);
  TERRACE_RETURN_IF_ERROR(charge_->Take(whole));
  absl::Status grown = runtime.GrowMemory(bytes);
  if (grown.ok()) {
    charged_bytes_ += whole;
  } else {
    charge_->Give(whole);
  }
  return grown;
}

}  // namespace terrace
