// The host's memory: one arena and its ranges, the budget of a job. It grows
// where it is told to, never by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "terrace/tier.h"
#include "tiers/byte_tier.h"
#include "tiers/extent_allocator.h"

namespace terrace {

class DramTier final : public Tier {
 public:
  // The arena outlives the tier. `spec`: as it was asked for; without a budget
  // it is the arena's size. `number`: among the runtime's memories.
  explicit DramTier(absl::Span<std::byte> arena, TierSpec spec = {},
                    int number = 0);

  TierId id() const override { return id_; }
  const std::string& name() const override { return name_; }
  TierKind kind() const override { return TierKind::kDram; }
  TierSpec spec() const override { return spec_; }
  TierUsage usage() const override;
  absl::StatusOr<std::optional<Reservation>> Allocate(int64_t size_bytes,
                                                      bool must) override;
  // Empty: there is no room now.
  Reservation TryAllocate(int64_t size_bytes);
  Reservation TakeAt(const Extent& range) override;
  // Of that range, what is free last; nullopt: nothing is.
  std::optional<Extent> LastFreeIn(const Extent& range) const {
    return space_.LastFreeIn(range);
  }
  void Free(Extent extent) override;
  Extent WithFreeBeside(const Extent& range) const override {
    return space_.WithFreeBeside(range);
  }
  std::byte* Address(const Extent& extent) override {
    return arena_.data() + extent.offset;
  }
  void Abandon() override { abandoned_ = true; }

  // Of what is taken so much is lent: nobody here uses it, and the peak is
  // without it.
  void SetLent(int64_t bytes) { lent_bytes_ = bytes; }

  // The arena has that much more at its end now, and the budget too.
  void Extend(int64_t size_bytes);

  int64_t free_bytes() const { return space_.free_bytes(); }
  int64_t largest_free_bytes() const { return space_.largest_free_bytes(); }

 private:
  // Of what was just allocated.
  Reservation Reserve(const Extent& extent);

  const TierId id_;
  const std::string name_;
  TierSpec spec_;
  absl::Span<std::byte> arena_;
  ExtentAllocator space_;
  int64_t lent_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  bool abandoned_ = false;
};

}  // namespace terrace
