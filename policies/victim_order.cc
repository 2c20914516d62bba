#include "policies/victim_order.h"

#include <algorithm>
#include <cstddef>

namespace terrace {
namespace {

// True when `b` leaves before `a`, so that a heap has the best victim on top.
bool LeavesAfter(const RankedCandidate& a, const RankedCandidate& b) {
  if (a.next_use != b.next_use) return a.next_use < b.next_use;
  if (a.last_touch != b.last_touch) return a.last_touch > b.last_touch;
  return a.tensor > b.tensor;
}

}  // namespace

void TakeVictims(int64_t bytes, bool must,
                 std::vector<RankedCandidate> candidates,
                 std::vector<TensorId>* victims) {
  const size_t before = victims->size();
  std::make_heap(candidates.begin(), candidates.end(), LeavesAfter);
  int64_t taken_bytes = 0;
  while (taken_bytes < bytes && !candidates.empty()) {
    std::pop_heap(candidates.begin(), candidates.end(), LeavesAfter);
    victims->push_back(candidates.back().tensor);
    taken_bytes += candidates.back().size_bytes;
    candidates.pop_back();
  }
  if (taken_bytes < bytes && !must) victims->resize(before);
}

}  // namespace terrace
