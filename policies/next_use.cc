#include <utility>

#include "policies/eviction.h"
#include "policies/recency.h"
#include "policies/victim_order.h"

namespace terrace {
namespace {

// Belady's rule over the recorded future. A resident that the trace does not
// know counts as the latest of all: it goes before any other, but only for a
// newcomer whose use is known.
class NextUsePolicy final : public RecencyPolicy {
 public:
  bool ranks_by_next_use() const override { return true; }
  void PickVictims(int64_t bytes, int64_t newcomer_use, bool must,
                   absl::Span<const EvictionCandidate> evictable,
                   std::vector<TensorId>* victims) override {
    if (bytes <= 0) return;
    std::vector<RankedCandidate> ranked;
    for (const EvictionCandidate& candidate : evictable) {
      // Equal counts as sooner: an exchange of equals only costs transfers.
      if (!must && candidate.next_use <= newcomer_use) continue;
      ranked.push_back({.tensor = candidate.tensor,
                        .size_bytes = candidate.size_bytes,
                        .next_use = candidate.next_use,
                        .last_touch = LastTouch(candidate.tensor)});
    }
    TakeVictims(bytes, must, std::move(ranked), victims);
  }
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeNextUsePolicy() {
  return std::make_unique<NextUsePolicy>();
}

}  // namespace terrace
