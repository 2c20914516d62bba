#include "libtorch/hook/window/use_order.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

// TakeUpcoming looks at so many uses ahead, as many tensors of the trace may
// not be there yet.
constexpr size_t kMostLookedAt = 512;

}  // namespace

void UseOrder::Add(absl::Span<WindowTensor* const> tensors) {
  OrderedLock lock(mutex_);
  for (WindowTensor* const each : tensors) {
    each->is_numbered_ = each->number_ >= 0;
    if (tensors_.emplace(each->key(), each).second) continue;
    each->is_numbered_ = false;  // a step before still has its tensor
    tensors_.emplace(each->key(), each);
  }
}

void UseOrder::Remove(WindowTensor& tensor) {
  OrderedLock lock(mutex_);
  tensors_.erase(tensor.key());
}

size_t UseOrder::size() const {
  OrderedLock lock(mutex_);
  return tensors_.size();
}

int64_t UseOrder::PinnedBytesWith(const WindowTensor* tensor) const {
  OrderedLock lock(mutex_);
  int64_t bytes = 0;
  for (const auto& [key, each] : tensors_) {
    const ResidencyWord& word = each->word();
    const bool is_here = word.pinned() && word.state() == Residency::kResident;
    if (each != tensor && !is_here) continue;
    bytes += ResidentBytes(each->size_bytes());
  }
  return bytes;
}

void UseOrder::BeginStep() {
  OrderedLock lock(mutex_);
  trace_.BeginStep();
  tracing_.store(true, std::memory_order_relaxed);
}

void UseOrder::Trace(const WindowTensor& tensor) {
  OrderedLock lock(mutex_);
  trace_.Note(tensor.key());
}

bool UseOrder::known() const {
  OrderedLock lock(mutex_);
  return trace_.known();
}

size_t UseOrder::position() const {
  OrderedLock lock(mutex_);
  return trace_.position();
}

WindowTensor* UseOrder::TakeVictim(const VictimRule& rule) {
  OrderedLock lock(mutex_);
  while (true) {
    WindowTensor* victim = nullptr;
    // A later next use comes first, then an older last use.
    std::pair<int64_t, uint64_t> best;
    for (const auto& [key, each] : tensors_) {
      if (each->gone() || each->word().pinned() ||
          each->word().life() == Life::kEntering) {
        continue;
      }
      const Residency state = each->word().state();
      if (state != Residency::kResident &&
          !(state == Residency::kReady && rule.may_be_ready)) {
        continue;
      }
      const int64_t next_use = trace_.NextUse(key);
      const uint64_t age = ~each->last_use_.load(std::memory_order_relaxed);
      const std::pair<int64_t, uint64_t> value(next_use, age);
      if (next_use <= rule.used_after || (victim != nullptr && value < best)) {
        continue;
      }
      victim = each;
      best = value;
    }
    // No tensor is removed while the mutex is held; once its word is ours, the
    // victim cannot be.
    if (victim == nullptr || victim->word().BeginEvict()) return victim;
  }
}

UseOrder::Upcoming UseOrder::TakeUpcoming(int64_t within_bytes) {
  OrderedLock lock(mutex_);
  int64_t bytes = 0;
  const size_t end = std::min(trace_.size(), kMostLookedAt);
  for (size_t ahead = 0; ahead < end; ++ahead) {
    const auto found = tensors_.find(trace_.At(ahead));
    if (found == tensors_.end()) continue;
    WindowTensor& tensor = *found->second;
    const auto next_use = static_cast<int64_t>(ahead);
    if (trace_.NextUse(found->first) < next_use) continue;  // seen already
    bytes += ResidentBytes(tensor.size_bytes());
    if (bytes > within_bytes) break;
    if (tensor.gone() || tensor.word().life() != Life::kManaged) continue;
    if (tensor.word().state() != Residency::kCold) continue;
    if (tensor.word().BeginLoad()) return {&tensor, next_use};
  }
  return {};
}

std::vector<WindowTensor*> UseOrder::TakeFailed() {
  std::vector<WindowTensor*> failed;
  OrderedLock lock(mutex_);
  for (const auto& [key, each] : tensors_) {
    if (each->word().BeginRetry()) failed.push_back(each);
  }
  return failed;
}

}  // namespace terrace
