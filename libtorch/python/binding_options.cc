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

constexpr size_t kNumbersPerGroup = 7;

AdamOptions AdamOf(const double* numbers, const BindingOptions& options) {
  AdamOptions adam;
  adam.learning_rate = numbers[0];
  adam.beta1 = numbers[1];
  adam.beta2 = numbers[2];
  adam.epsilon = numbers[3];
  adam.weight_decay = numbers[4];
  adam.decoupled_decay = numbers[5] != 0;
  adam.maximize = numbers[6] != 0;
  adam.bias_correction = options.bias_correction;
  return adam;
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
    take("device", options.device);
    take("below_device_bytes", options.below_device_bytes);
    take("below_device_is_share", options.below_device_is_share);
    take("daemon", options.daemon);
    take("job", options.job);
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

absl::StatusOr<absl::Span<const int64_t>> GroupsIn(const at::Tensor& group_of,
                                                   size_t parameters) {
  if (group_of.scalar_type() != at::kLong || !group_of.device().is_cpu() ||
      !group_of.is_contiguous() ||
      static_cast<size_t>(group_of.numel()) != parameters) {
    return absl::InvalidArgumentError(
        absl::StrCat("the groups are int64 in CPU memory, one for each of ",
                     parameters, " parameters"));
  }
  return absl::MakeConstSpan(group_of.const_data_ptr<int64_t>(), parameters);
}

absl::StatusOr<std::vector<AdamOptions>> AdamOfEach(
    absl::Span<const int64_t> group_of, const std::vector<double>& numbers,
    const BindingOptions& options) {
  std::vector<AdamOptions> groups;
  for (size_t i = 0; i + kNumbersPerGroup <= numbers.size();
       i += kNumbersPerGroup) {
    groups.push_back(AdamOf(numbers.data() + i, options));
  }
  std::vector<AdamOptions> each(group_of.size());
  for (size_t i = 0; i < each.size(); ++i) {
    if (group_of[i] == kInNoGroup) continue;
    const auto group = static_cast<size_t>(group_of[i]);
    if (group >= groups.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", i, " is in group ", group_of[i],
                       ", numbers are given for ", groups.size(), " groups"));
    }
    each[i] = groups[group];
  }
  return each;
}

}  // namespace terrace
