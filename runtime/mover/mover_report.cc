#include "runtime/mover/mover_report.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

// How many pins a message names.
constexpr size_t kNamedPins = 8;
// Of a page: 64 KiB are a message.
constexpr size_t kPageTensors = 128;
constexpr size_t kNameBytes = 255;

}  // namespace

Stats Report::MakeStats(const absl::Status& first_error) const {
  Stats stats;
  const EngineInfo engine = parts_.links->engine_info();
  stats.engine = engine.name;
  stats.engine_reason = engine.reason;
  stats.host.buffers_registered = engine.buffers_registered;
  stats.late_completions = engine.late_completions;
  stats.paced_completions = engine.paced_completions;
  AddMemory(&stats);
  AddBytes(&stats);
  stats.requests = parts_.inbox->requests();
  stats.host.quarantined_bytes = parts_.links->quarantined_bytes();
  const Admission::Counts& counts = parts_.admission->counts();
  stats.demand_reads = counts.demand_reads;
  stats.prefetch_reads = counts.prefetch_reads;
  stats.prefetch_hits = counts.prefetch_hits;
  stats.hits = counts.hits();
  stats.evictions = parts_.working->evictions();
  stats.first_error = first_error;
  AddTiers(&stats);
  return stats;
}

void Report::AddMemory(Stats* stats) const {
  const TierResidency& first = parts_.working->at(kDramTier);
  const TierUsage memory = first.tier().usage();
  stats->host.budget_bytes = memory.capacity_bytes;
  stats->host.reserved_bytes = memory.capacity_bytes - parts_.lent->bytes();
  stats->host.used_bytes = memory.used_bytes - parts_.lent->reserved_bytes();
  stats->host.peak_bytes = memory.peak_bytes;
  stats->window_bytes = first.windows().size_bytes();
  stats->resident_bytes = first.residents().size_bytes();
}

void Report::AddBytes(Stats* stats) const {
  ByteQueueStats& bytes = stats->bytes;
  for (const TierResidency* const each : parts_.working->all()) {
    bytes.promised_bytes += each->windows().promised_bytes();
  }
  bytes.recalls = parts_.byte_pins->counts().asked;
  bytes.keeps = parts_.byte_pins->counts().kept;
  bytes.groups_beyond = parts_.byte_admission->groups_beyond();
  bytes.beyond_bytes = parts_.spill->used_bytes();
  bytes.beyond_peak_bytes = parts_.spill->peak_bytes();
}

void Report::AddTiers(Stats* stats) const {
  const auto add_fill = [this](TierId tier, TierStats* added) {
    const TierFill fill = parts_.table->FillOf(tier);
    if (!IsWorkingTier(tier)) added->tensors = fill.tensors;
    added->pinned_bytes = fill.pinned_bytes;
    added->dirty_bytes = fill.dirty_bytes;
    added->clean_bytes = fill.clean_bytes;
  };
  for (const TierResidency* const each : parts_.working->all()) {
    AddWorking(*each, stats);
    add_fill(each->id(), &stats->tiers.back());
    const TierStats added = stats->tiers.back();
    if (each->id() != kDramTier) AddLinks(added, each->id(), stats);
  }
  for (const TierId tier : parts_.resting->ids()) {
    TierStats added = parts_.placement->StatsOf(tier);
    add_fill(tier, &added);
    stats->host.quarantined_bytes +=
        parts_.links->stats(tier).quarantined_bytes;
    AddLinks(added, tier, stats);
    stats->tiers.push_back(std::move(added));
  }
}

void Report::AddLinks(const TierStats& far, TierId tier, Stats* stats) const {
  for (const TierResidency* const memory : parts_.working->memories()) {
    if (IsMemory(tier) && !KeepsBefore(memory->id(), tier)) continue;
    const Edge there = {memory->id(), tier};
    const Edge back = {tier, memory->id()};
    int64_t there_bytes = parts_.links->moved(there);
    int64_t back_bytes = parts_.links->moved(back);
    if (IsRestingTier(tier) && memory->id() == kDramTier) {
      // All that the tier has counted, but for other memories'.
      const IoPathStats moved = parts_.links->stats(tier);
      there_bytes = moved.bytes_written;
      back_bytes = moved.bytes_read;
      for (const TierResidency* const other : parts_.working->memories()) {
        there_bytes -= parts_.links->moved({other->id(), tier});
        back_bytes -= parts_.links->moved({tier, other->id()});
      }
    }
    const std::string name = TierName(memory->tier().spec());
    stats->links.push_back(
        {name, far.name, there_bytes, BlockedSeconds(there)});
    stats->links.push_back({far.name, name, back_bytes, BlockedSeconds(back)});
  }
}

TensorPage Report::MakePage(TensorId after) const {
  TensorPage page{.after = after};
  parts_.table->ForEachAfter(after, [&](const Tensor& tensor) {
    page.is_last = page.tensors.size() < kPageTensors;
    if (page.is_last) page.tensors.push_back(List(tensor));
    return page.is_last;
  });
  return page;
}

ListedTensor Report::List(const Tensor& tensor) const {
  ListedTensor listed{.id = tensor.id,
                      .name = tensor.spec.name.substr(0, kNameBytes),
                      .size_bytes = tensor.spec.size_bytes};
  const bool is_moving =
      tensor.ArrivingAt() != kNoTier || tensor.drain() != Drain::kNone;
  const TierId kept = tensor.KeptAt();
  const Copy* const below = tensor.resting();
  if (!tensor.loss().ok()) {
    listed.state = TensorState::kLost;
    return listed;
  }
  if (kept != kNoTier) {
    listed.tier = TierName(parts_.working->at(kept).tier().spec());
  } else if (below != nullptr && tensor.generation() > 0) {
    listed.tier = parts_.placement->StatsOf(below->place.tier()).name;
  }
  if (tensor.pins() > 0) {
    listed.state = TensorState::kPinned;
  } else if (is_moving) {
    listed.state = TensorState::kMoving;
  } else if (tensor.generation() > 0) {
    listed.state = IsNewerThanBelow(tensor) && below != nullptr
                       ? TensorState::kDirty
                       : TensorState::kClean;
  }
  return listed;
}

double Report::BlockedSeconds(Edge edge) const {
  return absl::ToDoubleSeconds(parts_.links->blocked(edge));
}

void Report::AddWorking(const TierResidency& residency, Stats* stats) const {
  stats->tiers.push_back(StatsOfTier(residency.tier()));
  TierStats& added = stats->tiers.back();
  if (residency.id() == kDramTier) {
    added.used_bytes -= parts_.lent->reserved_bytes();
  }
  added.hits = parts_.admission->counts()
                   .tier_hits[parts_.working->IndexOf(residency.id())];
  added.evictions = residency.evictions();
}

std::string Report::Holders() const {
  std::vector<std::string> names;
  if (!parts_.customers->open().empty()) {
    names.push_back(absl::StrCat(parts_.customers->open().size(), " queues"));
  }
  for (const std::string& name : parts_.pins->Names(kNamedPins)) {
    names.push_back(absl::StrCat("'", name, "'"));
  }
  if (parts_.pins->size() > kNamedPins) {
    names.push_back(absl::StrCat("and more, ", parts_.pins->size(), " pins"));
  }
  return absl::StrJoin(names, ", ");
}

std::string Report::HoldersOfRoom() const {
  const std::string own = Holders();
  if (parts_.lent->bytes() == 0) return own;
  return absl::StrCat(own, own.empty() ? "" : ", ", "other jobs, ",
                      parts_.lent->bytes(), " bytes");
}

absl::Status Report::CheckInvariants() const {
  TERRACE_RETURN_IF_ERROR(parts_.table->CheckInvariants());
  TERRACE_RETURN_IF_ERROR(CheckWanted());
  TERRACE_RETURN_IF_ERROR(CheckPlaces());
  for (const TierResidency* const each : parts_.working->all()) {
    TERRACE_RETURN_IF_ERROR(CheckWorking(*each));
  }
  return absl::OkStatus();
}

absl::Status Report::CheckWanted() const {
  WantedTensors wanted;
  for (const Customer* const customer : parts_.customers->open()) {
    for (const auto& [id, group] : customer->waiting) wanted.Add(group.wants);
  }
  parts_.admission->AddWanted(&wanted);
  if (wanted == parts_.customers->wanted()) return absl::OkStatus();
  return absl::InternalError("the groups want others than were counted");
}

absl::Status Report::CheckPlaces() const {
  std::vector<int64_t> stored(static_cast<size_t>(parts_.resting->count()));
  parts_.table->ForEach([&](const Tensor& tensor) {
    if (tensor.resting() == nullptr) return;
    const Reservation& place = tensor.resting()->place;
    stored[static_cast<size_t>(parts_.resting->IndexOf(place.tier()))] +=
        place.extent().size_bytes;
  });
  for (int i = 0; i < parts_.resting->count(); ++i) {
    const TierId tier = parts_.resting->ids()[static_cast<size_t>(i)];
    const int64_t sum =
        stored[static_cast<size_t>(i)] + parts_.transfers->second_bytes(tier);
    const int64_t used = parts_.resting->at(tier).usage().used_bytes;
    if (sum == used) continue;
    return absl::InternalError(absl::StrCat(parts_.resting->name(tier),
                                            ": its tensors have ", sum,
                                            " bytes, its books say ", used));
  }
  return absl::OkStatus();
}

absl::Status Report::CheckWorking(const TierResidency& residency) const {
  const TierId tier = residency.id();
  int64_t resident_bytes = 0;
  for (const ResidentSet::Resident& each : residency.residents().all()) {
    const Copy* const copy = each.tensor->at(tier);
    if (copy == nullptr || copy->place.extent() != each.room) {
      return absl::InternalError(absl::StrCat(
          "tensor '", each.tensor->spec.name, "': a resident without a copy"));
    }
    resident_bytes += each.room.size_bytes;
  }
  if (resident_bytes != residency.residents().size_bytes()) {
    return absl::InternalError(
        absl::StrCat("residents have ", resident_bytes, " bytes; counted were ",
                     residency.residents().size_bytes()));
  }
  int64_t sum = resident_bytes + parts_.transfers->late_bytes(tier) +
                residency.windows().size_bytes();
  if (tier == kDramTier) {
    sum += parts_.staging->size_bytes() + parts_.lent->reserved_bytes() +
           parts_.transfers->second_bytes(kDramTier);
  }
  const TierUsage used = residency.tier().usage();
  if (sum != used.used_bytes || used.used_bytes > used.capacity_bytes) {
    return absl::InternalError(
        absl::StrCat("extents add up to ", sum, " bytes, the budget says ",
                     used.used_bytes, " of ", used.capacity_bytes));
  }
  return absl::OkStatus();
}

}  // namespace terrace
