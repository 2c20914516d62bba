#include "libtorch/offload/joined_optimizers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"

namespace terrace {

absl::Status Both(const absl::Status& first, const absl::Status& second) {
  if (first.ok()) return second;
  if (second.ok()) return first;
  return Reworded(first,
                  absl::StrCat(first.message(), "; and ", second.message()));
}

void JoinedOptimizers::Add(JoinedOptimizer& optimizer) {
  MutexLock lock(mutex_);
  optimizers_.push_back(&optimizer);
}

void JoinedOptimizers::Remove(JoinedOptimizer& optimizer) {
  MutexLock lock(mutex_);
  std::erase(optimizers_, &optimizer);
}

absl::Status JoinedOptimizers::Flush(absl::Time deadline) {
  std::vector<JoinedOptimizer*> optimizers;  // a copy, as each call blocks
  {
    MutexLock lock(mutex_);
    optimizers = optimizers_;
  }
  absl::Status first;
  for (JoinedOptimizer* const each : optimizers) {
    first = Both(first, each->Flush(deadline));
  }
  return first;
}

absl::Status JoinedOptimizers::Close() {
  std::vector<JoinedOptimizer*> optimizers;
  {
    MutexLock lock(mutex_);
    optimizers = std::exchange(optimizers_, {});
  }
  absl::Status first;
  for (JoinedOptimizer* const each : optimizers) {
    first = Both(first, each->Close());
  }
  return first;
}

}  // namespace terrace
