#include "libtorch/hook/window/untold_uses.h"

#include <utility>

namespace terrace {
namespace {

// A message wakes the mover, which costs its sender microseconds: a few
// nanoseconds for each of so many uses.
constexpr size_t kMostUses = 1024;

}  // namespace

bool UntoldUses::Add(UseLane lane, TensorId tensor, int64_t size_bytes,
                     int64_t most_bytes) {
  OrderedLock lock(mutex_);
  std::vector<TensorId>& uses = uses_[static_cast<size_t>(lane)];
  if (!uses.empty() && uses.back() == tensor) return false;
  uses.push_back(tensor);
  bytes_ += size_bytes;
  return uses.size() >= kMostUses || bytes_ >= most_bytes;
}

UntoldUses::Uses UntoldUses::Take() {
  OrderedLock lock(mutex_);
  bytes_ = 0;
  return std::exchange(uses_, {});
}

}  // namespace terrace
