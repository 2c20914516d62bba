#include "examples/infer_gpt/pass_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace infer_gpt {

std::string JsonText(const RunReport& report) {
  nlohmann::ordered_json json;
  json["parameters"] = report.parameters;
  json["dtype"] = report.dtype;
  json["in_memory"] = report.in_memory;
  json["weight_bytes"] = report.plan.weight_bytes;
  json["budget_bytes"] = report.plan.budget_bytes;
  json["window_bytes"] = report.plan.window_bytes;
  json["arena_peak_bytes"] = report.moved.memory_peak_bytes;
  json["rss_peak_bytes"] = report.rss_peak_bytes;
  json["loss"] = report.loss;
  json["tokens"] = report.tokens;
  for (const PassRecord& pass : report.passes) {
    json["logits"].push_back(absl::StrFormat("%016x", pass.logits_digest));
    json["pass_seconds"].push_back(pass.seconds);
    json["bytes_read"].push_back(pass.bytes_read);
  }
  json["bytes_written"] = report.moved.bytes_written;
  json["fetches"] = report.moved.fetches;
  json["fetches_ahead"] = report.moved.fetches_ahead;
  json["blocked_seconds"] = report.moved.blocked_seconds;
  return json.dump(2) + "\n";
}

}  // namespace infer_gpt
