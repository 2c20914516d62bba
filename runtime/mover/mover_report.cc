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

}  // namespace

Stats Report::MakeStats(const absl::Status& first_error) const {
  Stats stats;
  const EngineInfo engine = parts_.links->engine_info();
  stats.engine = engine.name;
  stats.engine_reason = engine.reason;
  stats.host.buffers_registered = engine.buffers_registered;
  stats.late_completions = engine.late_completions;
  stats.paced_completions = engine.paced_completions;
  const TierUsage memory = parts_.dram->usage();
  stats.host.budget_bytes = memory.capacity_bytes;
  stats.host.reserved_bytes = memory.capacity_bytes;
  stats.host.used_bytes = memory.used_bytes;
  stats.host.peak_bytes = memory.peak_bytes;
  const TierResidency& in_memory = parts_.working->at(kDramTier);
  stats.window_bytes = in_memory.windows().size_bytes();
  stats.resident_bytes = in_memory.residents().size_bytes();
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

void Report::AddTiers(Stats* stats) const {
  AddWorking(kDramTier, stats);
  const std::string above = stats->tiers.front().name;
  if (parts_.working->Has(kHbmTier)) {
    constexpr Edge kUp = {kDramTier, kHbmTier};
    constexpr Edge kDown = {kHbmTier, kDramTier};
    AddWorking(kHbmTier, stats);
    const std::string& device = stats->tiers.back().name;
    stats->links.push_back(
        {above, device, parts_.links->moved(kUp), BlockedSeconds(kUp)});
    stats->links.push_back(
        {device, above, parts_.links->moved(kDown), BlockedSeconds(kDown)});
  }
  const std::vector<int64_t> tensors = CountTensors();
  for (TierId tier = RestingTiers::first(); tier < parts_.resting->end();
       ++tier) {
    stats->tiers.push_back(parts_.placement->StatsOf(tier));
    TierStats& added = stats->tiers.back();
    added.tensors = tensors[static_cast<size_t>(tier - RestingTiers::first())];
    const IoPathStats moved = parts_.links->stats(tier);
    stats->host.quarantined_bytes += moved.quarantined_bytes;
    stats->links.push_back({above, added.name, moved.bytes_written,
                            BlockedSeconds({kDramTier, tier})});
    stats->links.push_back({added.name, above, moved.bytes_read,
                            BlockedSeconds({tier, kDramTier})});
  }
}

std::vector<int64_t> Report::CountTensors() const {
  std::vector<int64_t> tensors(static_cast<size_t>(parts_.resting->count()));
  parts_.table->ForEach([&](const Tensor& tensor) {
    if (tensor.resting() == nullptr) return;
    ++tensors[static_cast<size_t>(tensor.resting()->place.tier() -
                                  RestingTiers::first())];
  });
  return tensors;
}

double Report::BlockedSeconds(Edge edge) const {
  return absl::ToDoubleSeconds(parts_.links->blocked(edge));
}

void Report::AddWorking(TierId tier, Stats* stats) const {
  const TierResidency& residency = parts_.working->at(tier);
  stats->tiers.push_back(StatsOfTier(residency.tier()));
  TierStats& added = stats->tiers.back();
  added.hits = parts_.admission->counts().tier_hits[WorkingIndex(tier)];
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
    stored[static_cast<size_t>(place.tier() - RestingTiers::first())] +=
        place.extent().size_bytes;
  });
  for (int i = 0; i < parts_.resting->count(); ++i) {
    const TierId tier = RestingTiers::first() + i;
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
  if (tier == kDramTier) sum += parts_.staging->size_bytes();
  const TierUsage used = residency.tier().usage();
  if (sum != used.used_bytes || used.used_bytes > used.capacity_bytes) {
    return absl::InternalError(
        absl::StrCat("extents add up to ", sum, " bytes, the budget says ",
                     used.used_bytes, " of ", used.capacity_bytes));
  }
  return absl::OkStatus();
}

}  // namespace terrace
