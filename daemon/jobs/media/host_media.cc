#include <utility>

#include "base/status_macros.h"
#include "daemon/jobs/media/medium_source.h"
#include "tiers/memory/far_medium.h"
#include "tiers/memory/topology.h"
#include "tiers/pmem/pmem_medium.h"

namespace terrace {
namespace {

PmemOptions PmemOf(const TierSpec& tier) {
  return {
      .place = tier.place, .budget_bytes = tier.budget_bytes, .grows = true};
}

class HostMedia final : public MediumSource {
 public:
  explicit HostMedia(TierSpec memory) : memory_(std::move(memory)) {}

  absl::StatusOr<std::unique_ptr<Medium>> Open(const TierSpec& tier,
                                               bool outlives) const override {
    if (tier.kind == TierKind::kPmem) return PmemMedium::Open(PmemOf(tier));
    FarOptions far = FarOf(tier);
    far.outlives = outlives;
    far.near_node = NodeOf(memory_);
    if (far.near_node < 0) {
      TERRACE_ASSIGN_OR_RETURN(const Topology topology, ReadTopology());
      far.near_node = NearestNode(topology, topology.cpus);
    }
    return FarMedium::Open(far);
  }

  absl::StatusOr<std::unique_ptr<Medium>> Reopen(
      const TierSpec& tier, KeptMedium kept, int64_t used_bytes,
      absl::Time deadline) const override {
    if (tier.kind == TierKind::kPmem) {
      return PmemMedium::Reopen(PmemOf(tier), std::move(kept), used_bytes,
                                deadline);
    }
    return FarMedium::Reopen(FarOf(tier), std::move(kept), used_bytes);
  }

 private:
  static FarOptions FarOf(const TierSpec& tier) {
    return {
        .node = NodeOf(tier), .budget_bytes = tier.budget_bytes, .grows = true};
  }

  const TierSpec memory_;
};

}  // namespace

std::unique_ptr<MediumSource> MakeHostMedia(const TierSpec& memory) {
  return std::make_unique<HostMedia>(memory);
}

}  // namespace terrace
