// A tier of mapped bytes: far memory, or persistent memory. Its size is fixed
// at the start, or it grows where its medium does; ranges that its medium calls
// bad are never handed out.
//
// Mover only; the medium grows, and its file goes, on the background.
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
#include "tiers/extent_allocator.h"
#include "tiers/growth/tier_growth.h"
#include "tiers/medium.h"
#include "tiers/tier_events.h"

namespace terrace {

// What a MappedTier is made from.
struct MappedTierParts {
  TierId id = kNoTier;
  TierSpec spec;
  std::shared_ptr<Medium> medium;  // of 4 KiB at least, or it grows
  Executor* background = nullptr;  // outlives the tier
  std::shared_ptr<TierEvents> events;
  // Of one that grows, as DiskTierParts have them.
  Clock* clock = nullptr;
  absl::Duration patience;
};

class MappedTier final : public Tier {
 public:
  explicit MappedTier(MappedTierParts parts);

  TierId id() const override { return id_; }
  const std::string& name() const override { return medium_->name(); }
  TierKind kind() const override { return spec_.kind; }
  TierSpec spec() const override { return spec_; }
  std::optional<uint64_t> seal_id() const override { return seal_id_; }
  TierUsage usage() const override;
  const std::shared_ptr<Medium>& medium() const { return medium_; }

  // ResourceExhausted: there is no such range, and it does not grow by that.
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

  void BeginRemove() override;
  void OnRemoved() override { removing_ = false; }
  bool removed() const override { return !removing_; }
  void Abandon() override;

 private:
  // Those from there on.
  void ExcludeBadRanges(int64_t from);
  absl::Status NoRoom(int64_t size_bytes) const;

  const TierId id_;
  const TierSpec spec_;
  const std::shared_ptr<Medium> medium_;
  Executor& background_;
  const std::shared_ptr<TierEvents> events_;
  const std::optional<uint64_t> seal_id_;
  ExtentAllocator space_;
  TierGrowth growth_;
  int64_t bad_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  bool removing_ = false;
  bool abandoned_ = false;
};

}  // namespace terrace
