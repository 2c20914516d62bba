// What goes wrong in a random run, and how fast its devices are.
#include <cerrno>

#include "base/io_fault.h"
#include "tests/sim/random_operations.h"
#include "tests/support/medium/tier_ids.h"

namespace terrace {

// Each path has a pace of its own, and so has each tier whose copies have
// threads in virtual time.
void RandomOperations::ChangePace() {
  const size_t paths = world_.runtime().GetStats().paths().size();
  const PaceOptions pace = {int64_t{1} << (24 + Draw(8)),
                            int64_t{1} << (24 + Draw(8))};
  const auto tier = static_cast<int>(Draw(paths + world_.paced_tiers()));
  if (tier < static_cast<int>(paths)) return world_.SetPace(tier, pace);
  world_.SetMappedPace(tier - static_cast<int>(paths), pace);
}

void RandomOperations::ChangeFaults() {
  if (trouble_ == Trouble::kNone) return;
  if (faults_on_) {
    if (!faulty_) refused_by_paths_ += world_.faults().faults();
    world_.ClearFaults();
  } else if (faulty_) {
    world_.faults().SetChances(DrawChances());
    FailACopy();
  } else {
    RefuseWrites();
  }
  faults_on_ = !faults_on_;
}

// Always of the same tier, a mapped one or a path: a write that it refused may
// still be under way when it does better, and another must be there for it.
void RandomOperations::RefuseWrites() {
  const auto& mapped = world_.mapped();
  if (refusing_tier_ < 0) {  // once: that asks the mover
    refusing_tier_ = static_cast<int>(
        Draw(mapped.size() + world_.runtime().GetStats().paths().size()));
  }
  const int errors[] = {EROFS, ENOSPC, EIO};
  const int error = errors[Draw(3)];
  const auto tier = static_cast<size_t>(refusing_tier_);
  if (tier < mapped.size()) {
    return mapped[tier]->faults.FailAll(
        IoDirection::kWrite,
        WithIoFault(absl::UnavailableError("worn out"), {.error = error}));
  }
  world_.faults().FailFile(static_cast<int>(tier - mapped.size()),
                           {.kind = FaultKind::kError, .error = error},
                           CallFilter::kWrites);
}

int64_t RandomOperations::refused_by_mapped() {
  int64_t refused = 0;
  for (const auto& memory : world_.mapped()) {
    if (!faulty_) refused += memory->faults.failed_calls();
  }
  return refused;
}

// One of the next copies of a mapped tier, or of a device; or a move of a
// device is late, until the faults end.
void RandomOperations::FailACopy() {
  const auto& mapped = world_.mapped();
  if (mapped.empty()) return;
  const auto calls = static_cast<int64_t>(Draw(20));
  FaultMedium* medium = &mapped[Draw(mapped.size())]->faults;
  if (world_.hbm() != nullptr && Draw(2) == 0) {
    medium = &world_.hbm()->faults();
    HeldMoves& held = *world_.hbm()->held;
    held.next = static_cast<int>(Draw(3));
    held.to = Draw(2) == 0 ? kHbmTier : kDramTier;
    held.status =
        Draw(2) == 0 ? absl::OkStatus() : absl::UnavailableError("too late");
    held.release = false;
  }
  medium->Fail(calls, Draw(4) == 0 ? absl::DataLossError("a cell went bad")
                                   : absl::UnavailableError("not now"));
}

FaultChances RandomOperations::DrawChances() {
  const auto chance = [&](double most) {
    return Draw(2) == 0 ? 0.0 : most * static_cast<double>(Draw(100)) / 100;
  };
  FaultChances chances;
  chances.error = chance(0.05);
  chances.again = chance(0.2);
  chances.no_space = chance(0.2);
  chances.short_transfer = chance(0.2);
  chances.delay = chance(0.3);
  chances.reorder = chance(0.3);
  chances.bit_flip = chance(0.02);
  chances.never = chance(0.05);
  chances.partial_submit = chance(0.2);
  return chances;
}

}  // namespace terrace
