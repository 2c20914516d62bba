#include "tiers/memory/dram_tier.h"

#include <algorithm>
#include <utility>

namespace terrace {
namespace {

TierSpec WithBudget(TierSpec spec, int64_t arena_bytes) {
  if (spec.budget_bytes == 0) spec.budget_bytes = arena_bytes;
  return spec;
}

}  // namespace

DramTier::DramTier(absl::Span<std::byte> arena, TierSpec spec, int number)
    : id_{TierKind::kDram, number},
      name_(number == 0 ? "memory" : TierName(spec)),
      spec_(WithBudget(std::move(spec), static_cast<int64_t>(arena.size()))),
      arena_(arena),
      space_(static_cast<int64_t>(arena.size())) {}

TierUsage DramTier::usage() const {
  return {.capacity_bytes = space_.capacity_bytes(),
          .used_bytes = space_.used_bytes(),
          .lent_bytes = lent_bytes_,
          .peak_bytes = peak_bytes_};
}

absl::StatusOr<std::optional<Reservation>> DramTier::Allocate(
    int64_t size_bytes, bool /*must*/) {
  const absl::StatusOr<Extent> extent = space_.Allocate(size_bytes);
  if (!extent.ok()) return extent.status();
  return std::optional<Reservation>(Reserve(*extent));
}

Reservation DramTier::TryAllocate(int64_t size_bytes) {
  const std::optional<Extent> extent = space_.TryAllocate(size_bytes);
  return extent.has_value() ? Reserve(*extent) : Reservation();
}

Reservation DramTier::TakeAt(const Extent& range) {
  return space_.TryTake(range) ? Reserve(range) : Reservation();
}

Reservation DramTier::Reserve(const Extent& extent) {
  peak_bytes_ = std::max(peak_bytes_, space_.used_bytes() - lent_bytes_);
  return {this, extent};
}

void DramTier::Extend(int64_t size_bytes) {
  arena_ = absl::MakeSpan(arena_.data(),
                          arena_.size() + static_cast<size_t>(size_bytes));
  spec_.budget_bytes += size_bytes;
  space_.Grow(size_bytes);
}

void DramTier::Free(Extent extent) {
  if (!abandoned_) space_.Free(extent);
}

}  // namespace terrace
