// An optimizer over resting tiers of known rates, in virtual time: what it gets
// of their sum. The reference of speed is bytes over the rates; that of
// contents is the serial loop of terrace/adam.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "terrace/optimizer.h"
#include "terrace/tier.h"
#include "tests/optimizer/reference_optimizer.h"
#include "tests/sim/world.h"

namespace terrace {

struct PacedTier {
  TierKind kind = TierKind::kDisk;
  double bytes_per_second = 0;  // in each direction alike
  int64_t budget_bytes = 0;
};

class PacedTraining {
 public:
  static constexpr int64_t kChunkBytes = 64 << 10;
  static constexpr int64_t kChunks = 256;
  static constexpr int64_t kSlotBytes = kChunkBytes + 4096;
  // The optimizer cuts them into places of 32 KiB and a header.
  static constexpr int64_t kPlaceBytes = (32 << 10) + 4096;
  static constexpr int64_t kPlaces = 2 * kChunks;
  static constexpr int64_t kStateBytes = kPlaces * kPlaceBytes;

  struct Size {
    int slots = 24;  // of the window
    int residents = 4;
    int64_t chunks = kChunks;
    int64_t check_every = 1;  // see WorldOptions
  };

  // Mapped tiers first, then disks.
  explicit PacedTraining(const std::vector<PacedTier>& tiers)
      : PacedTraining(tiers, Size()) {}
  PacedTraining(const std::vector<PacedTier>& tiers, const Size& size);

  World& world() { return *world_; }
  OffloadedOptimizer& optimizer() { return *optimizer_; }
  ReferenceOptimizer& reference() { return *reference_; }
  const Model& model() const { return model_; }
  Stats stats() { return world_->runtime().GetStats(); }
  TierStats path(int path) {
    return stats().paths()[static_cast<size_t>(path)];
  }

  // Of what that tier is asked from here on.
  void SetRate(int tier, double bytes_per_second);
  double rate(int tier) const { return rates_[static_cast<size_t>(tier)]; }
  double Sum() const;

  absl::Status Step();
  // That many steps: what they moved, of each direction alone, over what the
  // tiers could have.
  double Share(int steps);
  // Of each tier's rate, in the steps of the last Share.
  const std::string& used() const { return used_; }
  // Steps until rates are known and places follow them.
  void WarmUp();
  void ExpectNothingLost();

 private:
  Model model_;
  int mapped_ = 0;
  std::vector<double> rates_;
  std::string used_;
  std::optional<World> world_;
  std::unique_ptr<ReferenceOptimizer> reference_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;  // first to go
};

}  // namespace terrace
