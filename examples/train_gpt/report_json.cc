#include <nlohmann/json.hpp>

#include "examples/train_gpt/report.h"

namespace train_gpt {
namespace {

using Json = nlohmann::ordered_json;

template <typename Field>
Json ListOf(const RunReport& report, Field field) {
  Json list = Json::array();
  for (const StepRecord& step : report.steps) list.push_back(step.*field);
  return list;
}

template <typename Field>
double SumOf(const RunReport& report, Field field) {
  double sum = 0;
  for (const StepRecord& step : report.steps) sum += step.*field;
  return sum;
}

}  // namespace

std::string JsonText(const RunReport& report) {
  Json json;
  json["parameters"] = report.parameters;
  json["dtype"] = report.dtype;
  json["state_bytes"] = report.state_bytes;
  json["budget_bytes"] = report.budget_bytes;
  json["window_bytes"] = report.window_bytes;
  json["chunk_bytes"] = report.chunk_bytes;
  json["arena_peak_bytes"] = report.arena_peak_bytes;
  json["resident_bytes"] = report.resident_bytes;
  json["tiers"] = Json::array();
  for (const terrace::TierStats& tier : report.tiers) {
    json["tiers"].push_back({{"name", tier.name},
                             {"kind", terrace::TierKindName(tier.kind)},
                             {"budget_bytes", tier.budget_bytes},
                             {"used_bytes", tier.used_bytes},
                             {"peak_bytes", tier.peak_bytes}});
  }
  json["links"] = Json::array();
  for (size_t i = 0; i < report.links.size(); ++i) {
    const terrace::LinkStats& link = report.links[i];
    Json steps = Json::array();
    for (const StepRecord& step : report.steps) {
      steps.push_back(step.link_bytes[i]);
    }
    json["links"].push_back({{"from", link.from},
                             {"to", link.to},
                             {"bytes", link.bytes},
                             {"step_bytes", steps},
                             {"seconds_blocked", link.seconds_blocked}});
  }
  json["rss_peak_bytes"] = report.rss_peak_bytes;
  json["engine"] = report.engine;
  json["direct_io"] = report.direct_io;
  json["isa"] = report.isa;
  json["losses"] = ListOf(report, &StepRecord::loss);
  json["step_seconds"] = ListOf(report, &StepRecord::seconds);
  json["blocked_seconds"] = {
      {"read", SumOf(report, &StepRecord::blocked_read_seconds)},
      {"write", SumOf(report, &StepRecord::blocked_write_seconds)},
      {"space", SumOf(report, &StepRecord::blocked_space_seconds)}};
  json["bytes_read"] = ListOf(report, &StepRecord::bytes_read);
  json["bytes_written"] = ListOf(report, &StepRecord::bytes_written);
  if (report.scales_losses()) {
    json["loss_scales"] = ListOf(report, &StepRecord::loss_scale);
    json["skipped"] = ListOf(report, &StepRecord::skipped);
  }
  if (report.verification) {
    const Verification& v = *report.verification;
    json["verify"] = {
        {"reference", v.identical() ? "identical" : "different"},
        {"libtorch",
         {{"max_loss_difference", v.max_loss_difference},
          {"parameter_l2_difference", v.parameter_l2_difference},
          {"max_parameter_difference", v.max_parameter_difference}}}};
  }
  return json.dump(2) + "\n";
}

}  // namespace train_gpt
