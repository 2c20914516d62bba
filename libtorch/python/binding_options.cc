// The JSON that OptimizerBinding::Open and OffloadBinding::Open take.
#include "libtorch/python/binding_options.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

absl::StatusOr<EngineKind> ParseEngine(const std::string& name) {
  if (name == "auto") return EngineKind::kAuto;
  if (name == "io_uring") return EngineKind::kUring;
  if (name == "threads") return EngineKind::kThreads;
  return absl::InvalidArgumentError(absl::StrCat(
      "io_engine is 'auto', 'io_uring' or 'threads', not '", name, "'"));
}

}  // namespace

absl::StatusOr<BindingOptions> ReadBindingOptions(const std::string& json) {
  BindingOptions options;
  std::string engine = "auto";
  std::vector<std::string> mapped_tiers;
  try {
    const nlohmann::json object = nlohmann::json::parse(json);
    const auto take = [&object](const char* name, auto& value) {
      if (object.contains(name)) object.at(name).get_to(value);
    };
    take("budget_bytes", options.budget_bytes);
    take("memory_place", options.memory_place);
    take("at_least_minimum", options.at_least_minimum);
    take("named_tiers", options.named_tiers);
    take("paths", options.paths);
    take("path_budgets", options.path_budgets);
    take("mapped_tiers", mapped_tiers);
    take("unsafe_media", options.unsafe_media);
    take("engine", engine);
    take("machine_profile", options.machine_profile);
    take("activations_above", options.activations_above);
    take("threads", options.threads);
    take("chunk_bytes", options.chunk_bytes);
    take("max_gradient_norm", options.max_gradient_norm);
    take("skip_nonfinite", options.skip_nonfinite);
    take("bias_correction", options.bias_correction);
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("options of the optimizer: ", error.what()));
  }
  TERRACE_ASSIGN_OR_RETURN(options.engine, ParseEngine(engine));
  for (const std::string& text : mapped_tiers) {
    TERRACE_ASSIGN_OR_RETURN(TierSpec tier, ParseTier(text));
    options.mapped_tiers.push_back(std::move(tier));
  }
  return options;
}

}  // namespace terrace
