// The JSON that OptimizerBinding::Open and OffloadBinding::Open take.
#include "runtime/torch/python/place/options.h"

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"

namespace terrace {

absl::StatusOr<BindingOptions> ReadBindingOptions(const std::string& json) {
  BindingOptions options;
  try {
    const nlohmann::json object = nlohmann::json::parse(json);
    const auto take = [&object](const char* name, auto& value) {
      if (object.contains(name)) object.at(name).get_to(value);
    };
    take("budget_bytes", options.budget_bytes);
    take("at_least_minimum", options.at_least_minimum);
    take("named_tiers", options.named_tiers);
    take("paths", options.paths);
    take("path_budgets", options.path_budgets);
    take("mapped_tiers", options.mapped_tiers);
    take("unsafe_media", options.unsafe_media);
    take("engine", options.engine);
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
  return options;
}

}  // namespace terrace
