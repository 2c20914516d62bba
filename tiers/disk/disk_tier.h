// A disk path as a tier: the space of its file, which grows and goes in the
// background.
//
// What killed jobs left on the path goes from the beginning, piece by piece.
// A disk that does not answer in time while its file grows is late: nothing
// more is asked of it until it does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/executor.h"
#include "tiers/byte_tier.h"
#include "tiers/disk/disk_file.h"
#include "tiers/growth/tier_growth.h"
#include "tiers/tier_events.h"

namespace terrace {

// What a DiskTier is made from.
struct DiskTierParts {
  TierId id = kNoTier;
  std::unique_ptr<DiskFile> file;
  Executor* background = nullptr;  // outlives the tier
  std::shared_ptr<TierEvents> events;
  Clock* clock = nullptr;   // outlives the tier
  absl::Duration patience;  // how long growth may seem to stand still
};

class DiskTier final : public Tier {
 public:
  explicit DiskTier(DiskTierParts parts);

  TierId id() const override { return id_; }
  const std::string& name() const override { return info().file; }
  const DiskFileInfo& info() const { return file_->info(); }
  TierKind kind() const override { return TierKind::kDisk; }
  TierSpec spec() const override;
  // Random, or as it was: a header says where it was written.
  std::optional<uint64_t> seal_id() const override { return seal_id_; }
  TierUsage usage() const override;

  absl::StatusOr<std::optional<Reservation>> Allocate(int64_t size_bytes,
                                                      bool must) override;
  Reservation TakeAt(const Extent& range) override;
  void Free(Extent extent) override;
  void ForgetRefusals() override { growth_.ForgetRefusals(); }
  std::byte* Address(const Extent&) override { return nullptr; }

  bool late() const override { return growth_.late(); }
  absl::Status CheckGrowth(absl::Time now) override;
  absl::Time NextEvent() const override { return growth_.NextEvent(); }
  GrowthAnswer OnGrown(const Grown& event) override;
  // The next piece's turn is behind a file that wants to grow meanwhile.
  void OnReclaimed(const Reclaimed& event) override;

  void BeginRemove() override;
  void OnRemoved() override { removing_ = false; }
  bool removed() const override { return !removing_; }
  void Abandon() override;

 private:
  void StartReclaim();

  const TierId id_;
  // Shared with the background's tasks: one that hangs outlives the tier.
  const std::shared_ptr<DiskFile> file_;
  Executor& background_;
  const std::shared_ptr<TierEvents> events_;
  const uint64_t seal_id_;
  TierGrowth growth_;
  bool ending_ = false;
  bool removing_ = false;
  bool abandoned_ = false;
  int64_t peak_bytes_ = 0;
};

}  // namespace terrace
