#include <utility>

#include "policies/eviction.h"
#include "policies/recency.h"
#include "policies/victim_order.h"

namespace terrace {
namespace {

// Knows no futures, so it gives way to every newcomer.
class LruPolicy final : public RecencyPolicy {
 public:
  bool ranks_by_next_use() const override { return false; }
  void PickVictims(int64_t bytes, int64_t /*newcomer_use*/, bool must,
                   absl::Span<const EvictionCandidate> evictable,
                   std::vector<TensorId>* victims) override {
    if (bytes <= 0) return;
    std::vector<RankedCandidate> ranked;
    ranked.reserve(evictable.size());
    for (const EvictionCandidate& candidate : evictable) {
      ranked.push_back({.tensor = candidate.tensor,
                        .size_bytes = candidate.size_bytes,
                        .last_touch = LastTouch(candidate.tensor)});
    }
    TakeVictims(bytes, must, std::move(ranked), victims);
  }
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeLruPolicy() {
  return std::make_unique<LruPolicy>();
}

}  // namespace terrace
