#include "libtorch/hook/window/untold_uses.h"

#include <algorithm>

namespace terrace {
namespace {

// A message wakes the mover, which costs its sender microseconds: a few
// nanoseconds for each of so many uses.
constexpr size_t kMostUses = 1024;

// A lane's state is a word: how many uses there are, in which half, and how
// many bytes their tensors have, less than 256 TiB.
constexpr int kHalfBit = 15;
constexpr int kBytesBit = 16;
constexpr uint64_t kHalf = uint64_t{1} << kHalfBit;

size_t CountOf(uint64_t state) { return state & (kHalf - 1); }
size_t HalfOf(uint64_t state) { return (state & kHalf) >> kHalfBit; }
int64_t BytesOf(uint64_t state) {
  return static_cast<int64_t>(state >> kBytesBit);
}
uint64_t UseOf(int64_t size_bytes) {
  return (static_cast<uint64_t>(size_bytes) << kBytesBit) + 1;
}

}  // namespace

bool UntoldUses::Add(UseLane lane, TensorId tensor, int64_t size_bytes,
                     int64_t most_bytes) {
  Lane& uses = lanes_[static_cast<size_t>(lane)];
  const uint64_t seen = uses.state.load(std::memory_order_relaxed);
  const size_t last = CountOf(seen) - 1;  // beyond all, where there is none
  if (last < kSlots && uses.halves[HalfOf(seen)][last].load(
                           std::memory_order_relaxed) == tensor.value + 1) {
    return false;
  }
  const uint64_t use = UseOf(size_bytes);
  // After the exchange of Take that opened this half: its slots are empty.
  const uint64_t before = uses.state.fetch_add(use, std::memory_order_acquire);
  const size_t place = CountOf(before);
  // Beyond the slots it is told too late to say anything.
  if (place < kSlots) {
    uses.halves[HalfOf(before)][place].store(tensor.value + 1,
                                             std::memory_order_relaxed);
  }
  return place + 1 >= kMostUses || BytesOf(before + use) >= most_bytes;
}

UntoldUses::Uses UntoldUses::Take() {
  OrderedLock lock(mutex_);
  Uses taken;
  for (size_t lane = 0; lane < kUseLanes; ++lane) {
    Lane& uses = lanes_[lane];
    // Only this thread turns halves over.
    const uint64_t other =
        (uses.state.load(std::memory_order_relaxed) & kHalf) ^ kHalf;
    const uint64_t state =
        uses.state.exchange(other, std::memory_order_acq_rel);
    const size_t count = std::min(CountOf(state), kSlots);
    taken[lane].reserve(count);
    for (size_t place = 0; place < count; ++place) {
      std::atomic<int64_t>& slot = uses.halves[HalfOf(state)][place];
      const int64_t use = slot.load(std::memory_order_relaxed);
      if (use == 0) continue;  // its thread is about to set it
      slot.store(0, std::memory_order_relaxed);
      taken[lane].push_back({use - 1});
    }
  }
  return taken;
}

}  // namespace terrace
