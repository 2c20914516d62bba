#include "runtime/residency/write_placement.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/io_fault.h"
#include "terrace/runtime.h"

namespace terrace {

WritePlacement::WritePlacement(RestingTiers& tiers, const Links& links,
                               absl::Span<const PathPrior> priors)
    : tiers_(tiers),
      links_(links),
      placement_(tiers.count(), priors),
      meters_(static_cast<size_t>(tiers.count())) {}

void WritePlacement::OnMoved(const MoveReport& report) {
  if (report.given_up != kNoTier) GiveUp(report.given_up);
  const bool reads = IsFromFar(report.edge);
  const TierId tier = FarEnd(report.edge);
  if (IsWorkingTier(tier)) return;  // between those
  const bool ok = report.status.ok();
  const bool cancelled = absl::IsCancelled(report.status);
  if (ok && !report.released) {
    ++(reads ? at(tier).reads : at(tier).writes);
  }
  if (reads) {
    if (!report.released && !cancelled) placement_.OnRead(PathOf(tier), ok);
    return;
  }
  if (!ok && !report.late) GiveUp(tier);
  if (cancelled) return;
  placement_.OnWritten(PathOf(tier), ok, report.failures);
  if (!ok) at(tier).write_error = report.status;
}

void WritePlacement::Measure() {
  for (const TierId tier : tiers_.ids()) {
    Meter& meter = at(tier);
    if (meter.reads + meter.writes == 0) continue;
    const IoPathStats now = links_.stats(tier);
    if (meter.reads > 0) {
      placement_.read_rate(PathOf(tier))
          .Add(meter.reads, now.bytes_read - meter.last.bytes_read,
               absl::ToDoubleSeconds(now.read_busy - meter.last.read_busy));
      meter.last.bytes_read = now.bytes_read;
      meter.last.read_busy = now.read_busy;
    }
    if (meter.writes > 0) {
      placement_.write_rate(PathOf(tier))
          .Add(meter.writes, now.bytes_written - meter.last.bytes_written,
               absl::ToDoubleSeconds(now.write_busy - meter.last.write_busy));
      meter.last.bytes_written = now.bytes_written;
      meter.last.write_busy = now.write_busy;
    }
    meter.reads = meter.writes = 0;
  }
}

void WritePlacement::NoteUnanswered(int64_t size_bytes) {
  for (const TierId tier : tiers_.ids()) {
    const Meter& meter = at(tier);
    const IoPathStats now = links_.stats(tier);
    placement_.read_rate(PathOf(tier))
        .SetUnanswered(
            absl::ToDoubleSeconds(now.read_busy - meter.last.read_busy),
            size_bytes);
    placement_.write_rate(PathOf(tier))
        .SetUnanswered(
            absl::ToDoubleSeconds(now.write_busy - meter.last.write_busy),
            size_bytes);
  }
}

WriteTarget WritePlacement::ChooseTarget(const Tensor& tensor) {
  const int64_t bytes = ResidentBytes(tensor.spec.size_bytes);
  const TierId home = tensor.resting()->place.tier();
  PathFlags usable(static_cast<size_t>(tiers_.count()));
  for (int i = 0; i < tiers_.count(); ++i) {
    const TierId tier = tiers_.ids()[static_cast<size_t>(i)];
    usable[i] =
        !tensor.refusals.Has(tier) && (tier == home || !tiers_.at(tier).late());
  }
  if (tiers_.count() > 1) NoteUnanswered(bytes);
  bool waits = false;
  while (true) {
    int chosen = placement_.ChooseTarget(PathOf(home), usable, bytes);
    if (chosen < 0 && (waits || placement_.trying())) {
      return {.room = WriteTarget::Room::kWait};
    }
    if (chosen < 0 && usable[PathOf(home)]) chosen = PathOf(home);
    if (chosen < 0) {
      const auto any = std::find(usable.begin(), usable.end(), true);
      if (any == usable.end()) return {.room = WriteTarget::Room::kNone};
      chosen = static_cast<int>(any - usable.begin());
    }
    WriteTarget target;
    target.tier = tiers_.ids()[static_cast<size_t>(chosen)];
    if (target.tier != home) {
      absl::StatusOr<std::optional<Reservation>> room =
          tiers_.at(target.tier).Allocate(bytes, /*must=*/false);
      if (!room.ok() || !room->has_value()) {
        waits |= room.ok();
        usable[chosen] = false;
        continue;
      }
      target.second = std::move(**room);
    }
    target.room = WriteTarget::Room::kFound;
    placement_.OnPlaced(chosen, bytes);
    return target;
  }
}

TierId WritePlacement::ChooseHome(const PathFlags& refused,
                                  int64_t size_bytes) const {
  std::vector<int64_t> placed_bytes;
  for (const TierId tier : tiers_.ids()) {
    placed_bytes.push_back(tiers_.at(tier).usage().used_bytes);
  }
  for (const TierKind kind :
       {TierKind::kDisk, TierKind::kPmem, TierKind::kFar}) {
    PathFlags usable;
    for (const TierId tier : tiers_.ids()) {
      usable.push_back(tiers_.at(tier).kind() == kind &&
                       !tiers_.at(tier).late() && !refused[PathOf(tier)]);
    }
    const int path = placement_.ChooseHome(placed_bytes, usable, size_bytes);
    if (path >= 0) return tiers_.ids()[static_cast<size_t>(path)];
  }
  return kNoTier;
}

absl::Status WritePlacement::NoneIsUsable() const {
  const absl::Status* first = nullptr;
  std::vector<std::string> reasons;
  for (const Meter& meter : meters_) {
    if (meter.write_error.ok()) continue;
    if (first == nullptr) first = &meter.write_error;
    reasons.emplace_back(meter.write_error.message());
  }
  const std::string message = absl::StrCat("no usable path: all are degraded; ",
                                           absl::StrJoin(reasons, "; "));
  return first == nullptr
             ? absl::UnavailableError(message)
             : Reworded(*first, absl::StatusCode::kUnavailable, message);
}

void WritePlacement::TryAgain() {
  PathFlags hold;
  for (const TierId tier : tiers_.ids()) {
    hold.push_back(tiers_.at(tier).late() ||
                   links_.stats(tier).quarantined_bytes > 0);
  }
  placement_.TryAgain(hold);
}

TierState WritePlacement::StateOf(TierId tier) const {
  const int path = PathOf(tier);
  if (placement_.refuses(path) || tiers_.at(tier).late()) {
    return TierState::kRefusesWrites;
  }
  if (placement_.reads_fail(path)) return TierState::kUnreadable;
  const bool slow =
      placement_.read_rate(path).slow() || placement_.write_rate(path).slow();
  return slow ? TierState::kSlow : TierState::kHealthy;
}

TierStats WritePlacement::StatsOf(TierId tier) const {
  TierStats stats = StatsOfTier(tiers_.at(tier));
  stats.state = StateOf(tier);
  stats.degraded = stats.state == TierState::kRefusesWrites;
  stats.write_error = at(tier).write_error;
  stats.tensors_moved_in = at(tier).relocated;
  const IoPathStats io = links_.stats(tier);
  const int path = PathOf(tier);
  stats.traffic = {
      .bytes_read = io.bytes_read,
      .bytes_written = io.bytes_written,
      .requests_read = io.requests_read,
      .requests_written = io.requests_written,
      .retries = io.retries,
      .continuations = io.continuations,
      .read_bytes_per_second = placement_.read_rate(path).bytes_per_second(),
      .write_bytes_per_second = placement_.write_rate(path).bytes_per_second()};
  if (tier.kind != TierKind::kDisk) return stats;
  const DiskFileInfo& file = tiers_.disk(tier).info();
  stats.disk = {.directory = file.directory,
                .file = file.file,
                .direct_io = file.direct_io,
                .direct_io_reason = file.direct_io_reason,
                .jobs_elsewhere = file.jobs_elsewhere};
  return stats;
}

}  // namespace terrace
