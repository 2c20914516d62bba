// The JSON that OptimizerBinding::Describe returns.
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/check.h"
#include "runtime/torch/python/optimizer_binding.h"
#include "terrace/machine.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

const char* NameOf(PathState state) {
  switch (state) {
    case PathState::kHealthy:
      return "healthy";
    case PathState::kSlow:
      return "slow";
    case PathState::kRefusesWrites:
      return "refuses writes";
    case PathState::kUnreadable:
      return "unreadable";
  }
  TERRACE_CHECK(false);
}

Json PathAsJson(const PathStats& path) {
  return {{"directory", path.directory},
          {"direct_io", path.direct_io},
          {"direct_io_reason", path.direct_io_reason},
          {"state", NameOf(path.state)},
          {"degraded", path.degraded},
          {"write_error", std::string(path.write_error.message())},
          {"read_bytes_per_second", path.read_bytes_per_second},
          {"write_bytes_per_second", path.write_bytes_per_second},
          {"used_bytes", path.used_bytes},
          {"bytes_read", path.bytes_read},
          {"bytes_written", path.bytes_written},
          {"retries", path.retries}};
}

Json SecondsAsJson(const StepReport& report) {
  return {{"total", report.total_seconds},
          {"compute", report.compute_seconds},
          {"blocked_read", report.blocked_read_seconds},
          {"blocked_write", report.blocked_write_seconds},
          {"blocked_space", report.blocked_space_seconds},
          {"other", report.other_seconds}};
}

}  // namespace

std::string DescribeAsJson(const Stats& stats,
                           const OffloadedOptimizer& optimizer,
                           const StepReport& total) {
  const OptimizerPlan& plan = optimizer.plan();
  const StepReport& last = optimizer.last_report();
  Json paths = Json::array();
  for (const PathStats& path : stats.paths) paths.push_back(PathAsJson(path));
  const Json description = {{"parameters", plan.parameters},
                            {"state_bytes", plan.state_bytes},
                            {"disk_bytes", plan.disk_bytes},
                            {"window_bytes", plan.window_bytes},
                            {"minimum_budget_bytes", plan.minimum_budget_bytes},
                            {"chunk_bytes", plan.chunk_bytes},
                            {"chunks", plan.chunks},
                            {"host_budget_bytes", stats.host_budget_bytes},
                            {"host_used_bytes", stats.host_used_bytes},
                            {"host_peak_bytes", stats.host_peak_bytes},
                            {"resident_bytes", stats.resident_bytes},
                            {"engine", stats.engine},
                            {"engine_reason", stats.engine_reason},
                            {"machine_profile", stats.machine_profile},
                            {"instruction_set", InstructionSetName()},
                            {"bytes_read", stats.bytes_read()},
                            {"bytes_written", stats.bytes_written()},
                            {"paths", paths},
                            {"staging_bytes", total.staging_bytes},
                            {"bytes_from_devices", total.bytes_from_devices},
                            {"bytes_to_devices", total.bytes_to_devices},
                            {"step", last.step},
                            {"incomplete", optimizer.incomplete()},
                            {"gradient_norm", last.gradient_norm},
                            {"last_step_seconds", SecondsAsJson(last)},
                            {"seconds", SecondsAsJson(total)}};
  return description.dump();
}

}  // namespace terrace
