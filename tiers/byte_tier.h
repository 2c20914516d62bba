// One pool of bytes with one budget. Moves no bytes; a Transport does.
//
// One thread at a time, the mover's, and nothing here blocks: what asks a
// device (a file that grows or goes) runs on the tier's background, and its
// end comes back as a TierEvent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "terrace/stats.h"
#include "terrace/tier.h"
#include "tiers/extent.h"
#include "tiers/reservation.h"
#include "tiers/tier_events.h"

namespace terrace {

struct TierUsage {
  int64_t capacity_bytes = 0;
  int64_t used_bytes = 0;
  int64_t lent_bytes = 0;  // of those used: nobody here has them for now
  int64_t peak_bytes = 0;  // used at once, since the beginning
};

// How growth ended.
struct GrowthAnswer {
  absl::Status status;
  bool late = false;  // its caller has gone on
  bool must = false;  // as it asked
};

class Tier : public Reserver {
 public:
  virtual ~Tier() = default;

  // As errors name it: a disk's file.
  virtual const std::string& name() const = 0;
  virtual TierKind kind() const = 0;
  // As its user named it.
  virtual TierSpec spec() const = 0;
  // Copies there lie behind a header with this number, and are compared with it
  // when they are fetched; nullopt: they are not.
  virtual std::optional<uint64_t> seal_id() const { return std::nullopt; }
  virtual TierUsage usage() const = 0;
  // OK until what it stands on has failed for good: what is only there is lost.
  virtual absl::Status Health() const { return absl::OkStatus(); }

  // Room; nullopt: it grows, ask again after the answer. An error: it has no
  // room and cannot grow by that much. For what may as well be stored
  // elsewhere (`must` is false), a tier that could not grow is not asked again
  // until ForgetRefusals.
  virtual absl::StatusOr<std::optional<Reservation>> Allocate(
      int64_t size_bytes, bool must) = 0;
  virtual void ForgetRefusals() {}
  // That range itself, as a runtime before this one had it. Empty: it is not
  // there, or not free, or the tier keeps nothing of another runtime's.
  virtual Reservation TakeAt(const Extent& /*range*/) { return {}; }
  // A range of it and the free bytes that touch it, where the tier knows.
  virtual Extent WithFreeBeside(const Extent& range) const { return range; }

  // Null: the bytes are not the CPU's.
  virtual std::byte* Address(const Extent& extent) = 0;

  // Growing, past its deadline: nothing is asked of it until it answers.
  virtual bool late() const { return false; }
  // DeadlineExceeded, once, when growth has become late.
  virtual absl::Status CheckGrowth(absl::Time) { return absl::OkStatus(); }
  // When CheckGrowth may have something to say.
  virtual absl::Time NextEvent() const { return absl::InfiniteFuture(); }
  // What its background answers; to one that has none, nothing comes.
  virtual GrowthAnswer OnGrown(const Grown&) { return {}; }
  virtual void OnReclaimed(const Reclaimed&) {}

  // The end: gives the tier's files back in the background.
  virtual void BeginRemove() {}
  virtual void OnRemoved() {}
  virtual bool removed() const { return true; }
  // From here on reservations free nothing and check nothing: memory, files
  // and descriptors stay for transfers that never ended.
  virtual void Abandon() = 0;
};

// What a tier says of itself, without what moves to and from it.
inline TierStats StatsOfTier(const Tier& tier) {
  const TierSpec spec = tier.spec();
  const TierUsage usage = tier.usage();
  TierStats stats;
  stats.name = TierName(spec);
  stats.kind = spec.kind;
  stats.budget_bytes = spec.budget_bytes;
  stats.capacity_bytes = usage.capacity_bytes;
  stats.used_bytes = usage.used_bytes;
  stats.peak_bytes = usage.peak_bytes;
  return stats;
}

}  // namespace terrace
