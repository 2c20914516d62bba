#include "libtorch/offload/beside_budget.h"

#include <algorithm>

namespace terrace {

BesideBudget::BesideBudget(int64_t bytes)
    : left_bytes_(std::max<int64_t>(0, bytes)) {}

int64_t BesideBudget::left_bytes() const {
  MutexLock lock(mutex_);
  return left_bytes_;
}

bool BesideBudget::Take(int64_t bytes) {
  MutexLock lock(mutex_);
  if (bytes > left_bytes_) return false;
  left_bytes_ -= bytes;
  return true;
}

void BesideBudget::GiveBack(int64_t bytes) {
  MutexLock lock(mutex_);
  left_bytes_ += bytes;
}

}  // namespace terrace
