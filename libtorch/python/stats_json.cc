#include "libtorch/python/stats_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/time/time.h"
#include "base/check.h"
#include "libtorch/offload/offload_place.h"
#include "terrace/machine.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

const char* NameOf(TierState state) {
  switch (state) {
    case TierState::kHealthy:
      return "healthy";
    case TierState::kSlow:
      return "slow";
    case TierState::kRefusesWrites:
      return "refuses writes";
    case TierState::kUnreadable:
      return "unreadable";
  }
  TERRACE_CHECK(false);
}

Json PathAsJson(const TierStats& path) {
  return {{"directory", path.disk.directory},
          {"direct_io", path.disk.direct_io},
          {"direct_io_reason", path.disk.direct_io_reason},
          {"jobs_elsewhere", path.disk.jobs_elsewhere},
          {"state", NameOf(path.state)},
          {"degraded", path.degraded},
          {"write_error", std::string(path.write_error.message())},
          {"read_bytes_per_second", path.traffic.read_bytes_per_second},
          {"write_bytes_per_second", path.traffic.write_bytes_per_second},
          {"used_bytes", path.used_bytes},
          {"bytes_read", path.traffic.bytes_read},
          {"bytes_written", path.traffic.bytes_written},
          {"retries", path.traffic.retries}};
}

Json TiersAsJson(absl::Span<const TierStats> tiers) {
  Json list = Json::array();
  for (const TierStats& tier : tiers) {
    Json& added = list.emplace_back(Json{{"name", tier.name},
                                         {"kind", TierKindName(tier.kind)},
                                         {"budget_bytes", tier.budget_bytes},
                                         {"used_bytes", tier.used_bytes},
                                         {"peak_bytes", tier.peak_bytes}});
    if (tier.kind == TierKind::kDram || tier.kind == TierKind::kHbm) {
      added["hits"] = tier.hits;
      added["evictions"] = tier.evictions;
      continue;
    }
    added["state"] = NameOf(tier.state);
    added["write_error"] = std::string(tier.write_error.message());
    added["read_bytes_per_second"] = tier.traffic.read_bytes_per_second;
    added["write_bytes_per_second"] = tier.traffic.write_bytes_per_second;
  }
  return list;
}

Json LinksAsJson(absl::Span<const LinkStats> links) {
  Json list = Json::array();
  for (const LinkStats& link : links) {
    list.push_back({{"from", link.from},
                    {"to", link.to},
                    {"bytes", link.bytes},
                    {"seconds_blocked", link.seconds_blocked}});
  }
  return list;
}

int64_t UsedBytes(absl::Span<const TierStats> paths) {
  int64_t bytes = 0;
  for (const TierStats& path : paths) bytes += path.used_bytes;
  return bytes;
}

Json PathsAsJson(absl::Span<const TierStats> paths) {
  Json list = Json::array();
  for (const TierStats& path : paths) list.push_back(PathAsJson(path));
  return list;
}

}  // namespace

void Accumulate(const StepReport& report, StepReport& total) {
  total.total_seconds += report.total_seconds;
  total.compute_seconds += report.compute_seconds;
  total.blocked_read_seconds += report.blocked_read_seconds;
  total.blocked_write_seconds += report.blocked_write_seconds;
  total.blocked_space_seconds += report.blocked_space_seconds;
  total.other_seconds += report.other_seconds;
  total.staging_bytes = report.staging_bytes;
  total.bytes_from_devices += report.bytes_from_devices;
  total.bytes_to_devices += report.bytes_to_devices;
}

std::string StatsAsJson(const Stats& stats, const OptimizerPlan& plan,
                        int64_t steps, const StepReport& last,
                        const StepReport& total, absl::Duration waited) {
  const Json result = {
      {"parameters", plan.parameters},
      {"state_bytes", plan.state_bytes},
      {"memory_bytes", stats.host.reserved_bytes},
      {"memory_peak_bytes", stats.host.peak_bytes},
      {"resident_bytes", stats.resident_bytes},
      {"disk_bytes", UsedBytes(stats.paths())},
      {"chunks", plan.chunks},
      {"chunk_bytes", plan.chunk_bytes},
      {"bytes_read", stats.bytes_read()},
      {"bytes_written", stats.bytes_written()},
      {"staging_bytes", total.staging_bytes},
      {"bytes_from_devices", total.bytes_from_devices},
      {"bytes_to_devices", total.bytes_to_devices},
      {"paths", PathsAsJson(stats.paths())},
      {"tiers", TiersAsJson(stats.tiers)},
      {"links", LinksAsJson(stats.links)},
      {"steps", steps},
      {"step_seconds", total.total_seconds},
      {"compute_seconds", total.compute_seconds},
      {"blocked_seconds",
       {{"read", total.blocked_read_seconds},
        {"write", total.blocked_write_seconds},
        {"space", total.blocked_space_seconds}}},
      {"updates_waited_seconds", absl::ToDoubleSeconds(waited)},
      {"gradient_norm", last.gradient_norm},
      {"engine", stats.engine},
      {"engine_reason", stats.engine_reason},
      {"machine_profile", stats.machine_profile},
      {"instruction_set", InstructionSetName()}};
  return result.dump();
}

std::string OffloadStatsAsJson(OffloadPlace& place) {
  const Stats stats = place.runtime().GetStats();
  const OffloadPlan& plan = place.plan();
  const HookStats hook = place.hook().stats();
  Json tensors = Json::object();
  for (const BlockedOn& each : place.hook().blocked()) {
    tensors[each.tensor] = absl::ToDoubleSeconds(each.duration);
  }
  if (hook.saved.blocked > absl::ZeroDuration()) {
    tensors["activations.saved"] = absl::ToDoubleSeconds(hook.saved.blocked);
  }
  const double on_room = absl::ToDoubleSeconds(hook.blocked_on_room);
  const Json result = {
      {"parameter_bytes", plan.parameter_bytes},
      {"managed_bytes", hook.managed_bytes},
      {"managed_tensors", hook.managed_tensors},
      {"minimum_bytes", plan.minimum_bytes},
      {"budget_bytes", place.budget_bytes()},
      {"memory_peak_bytes", stats.host.peak_bytes},
      {"joined_bytes", place.added_bytes()},
      {"window_bytes", place.window_bytes()},
      {"window_peak_bytes", hook.window_peak_bytes},
      {"over_budget_bytes", std::max<int64_t>(0, hook.over_budget_bytes)},
      {"over_budget_operation", hook.over_budget_operation},
      {"disk_bytes", UsedBytes(stats.paths())},
      {"bytes_read", stats.bytes_read()},
      {"bytes_written", stats.bytes_written()},
      {"fetches", hook.fetches},
      {"fetches_ahead", hook.fetches_ahead},
      {"fetched_bytes", hook.fetched_bytes},
      {"evictions", hook.evictions},
      {"clean_drops", hook.clean_drops},
      {"failures", hook.failures},
      {"placed_tensors", hook.placed.tensors},
      {"placed_bytes", hook.placed.bytes},
      {"placed_left_bytes", hook.placed.left_bytes},
      {"activation_tensors", hook.saved.tensors},
      {"activation_bytes", hook.saved.bytes},
      {"activation_peak_bytes", hook.saved.peak_bytes},
      {"activation_written_bytes", hook.saved.evicted_bytes},
      {"activation_fetched_bytes", hook.saved.fetched_bytes},
      {"activation_limit_bytes", place.activation_limit()},
      {"activation_budget_bytes", plan.beside_share_bytes},
      {"blocked_seconds",
       {{"read", absl::ToDoubleSeconds(hook.blocked) - on_room},
        {"space", on_room}}},
      {"blocked_tensors", tensors},
      {"paths", PathsAsJson(stats.paths())},
      {"tiers", TiersAsJson(stats.tiers)},
      {"links", LinksAsJson(stats.links)},
      {"engine", stats.engine},
      {"engine_reason", stats.engine_reason},
      {"machine_profile", stats.machine_profile}};
  return result.dump();
}

}  // namespace terrace
