#include "libtorch/hook/window/untold_uses.h"

#include <utility>

namespace terrace {
namespace {

constexpr size_t kMostUses = 64;

}  // namespace

bool UntoldUses::Add(TensorId tensor, int64_t size_bytes, int64_t most_bytes) {
  OrderedLock lock(mutex_);
  if (!uses_.empty() && uses_.back() == tensor) return false;
  uses_.push_back(tensor);
  bytes_ += size_bytes;
  return uses_.size() >= kMostUses || bytes_ >= most_bytes;
}

std::vector<TensorId> UntoldUses::Take() {
  OrderedLock lock(mutex_);
  bytes_ = 0;
  return std::exchange(uses_, {});
}

}  // namespace terrace
