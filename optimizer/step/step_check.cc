#include "optimizer/step/step_check.h"

#include <bit>
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "optimizer/chunks/adam_check.h"

namespace terrace {
namespace {

bool SameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

bool Aligned(const void* pointer, DType dtype) {
  return reinterpret_cast<uintptr_t>(pointer) %
             static_cast<uintptr_t>(DTypeBytes(dtype)) ==
         0;
}

// What is wrong with one parameter, or null.
const char* Fault(const ParameterSpec& spec, const ParameterData& data) {
  if (spec.count > 0 && data.parameter == nullptr) return "has no data";
  if (!Aligned(data.parameter, spec.dtype)) {
    return "is not aligned to its elements";
  }
  if (data.gradient_dtype > DType::kFloat16) {
    return "has a gradient of unknown dtype";
  }
  if (!Aligned(data.gradient, data.gradient_dtype)) {
    return "has a gradient that is not aligned to its elements";
  }
  return nullptr;
}

absl::Status CheckParameters(absl::Span<const ParameterSpec> specs,
                             const StepArguments& arguments,
                             absl::Span<const ParameterData> parameters) {
  if (parameters.size() != specs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(parameters.size(), " parameters given, the optimizer has ",
                     specs.size()));
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto group = static_cast<size_t>(specs[i].group);
    if (!arguments.groups.empty() && group >= arguments.groups.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter ", i, " ('", specs[i].name, "') is in group ", group,
          ", options are given for ", arguments.groups.size(), " groups"));
    }
    const char* fault = Fault(specs[i], parameters[i]);
    if (fault == nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("parameter ", i, " ('", specs[i].name, "') ", fault));
  }
  return absl::OkStatus();
}

absl::Status CheckNormGradients(absl::Span<const GradientData> gradients) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    const GradientData& data = gradients[i];
    const auto bad = [i](const std::string& what) {
      return absl::InvalidArgumentError(
          absl::StrCat("norm_gradients[", i, "] ", what));
    };
    if (data.count < 0) return bad(absl::StrCat("has count ", data.count));
    if (data.dtype > DType::kFloat16) {
      return bad(
          absl::StrCat("is of unknown dtype ", static_cast<int>(data.dtype)));
    }
    if (!Aligned(data.values, data.dtype)) {
      return bad("is not aligned to its elements");
    }
  }
  return absl::OkStatus();
}

absl::Status Different(const std::string& what) {
  return absl::FailedPreconditionError(
      absl::StrCat("the step before is incomplete; it had another ", what));
}

absl::Status CheckSameOptions(const AdamOptions& before, const AdamOptions& now,
                              size_t group) {
  const struct {
    const char* name;
    double before, now;
  } numbers[] = {
      {"learning rate", before.learning_rate, now.learning_rate},
      {"beta1", before.beta1, now.beta1},
      {"beta2", before.beta2, now.beta2},
      {"epsilon", before.epsilon, now.epsilon},
      {"weight decay", before.weight_decay, now.weight_decay},
      {"mode", static_cast<double>(before.decoupled_decay),
       static_cast<double>(now.decoupled_decay)},
      {"bias correction", static_cast<double>(before.bias_correction),
       static_cast<double>(now.bias_correction)},
      {"maximize", static_cast<double>(before.maximize),
       static_cast<double>(now.maximize)},
  };
  for (const auto& number : numbers) {
    if (SameBits(number.before, number.now)) continue;
    return Different(
        absl::StrCat(number.name, " of group ", group, ", ", number.before));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StepSettings> CheckStep(
    const OptimizerOptions& options, absl::Span<const ParameterSpec> specs,
    const StepArguments& arguments,
    absl::Span<const ParameterData> parameters) {
  StepSettings settings;
  settings.loss_scale = arguments.loss_scale;
  settings.max_gradient_norm =
      arguments.max_gradient_norm.value_or(options.max_gradient_norm);
  settings.skip_nonfinite =
      arguments.skip_nonfinite.value_or(options.skip_nonfinite);
  settings.groups.assign(arguments.groups.begin(), arguments.groups.end());
  if (settings.groups.empty()) settings.groups.push_back(options.adam);
  for (size_t i = 0; i < settings.groups.size(); ++i) {
    AdamOptions& group = settings.groups[i];
    if (arguments.learning_rate) {
      group.learning_rate = *arguments.learning_rate;
    }
    // There may be as many groups as parameters: text only when it is needed.
    if (!CheckAdamOptions(group, "").ok()) {
      return CheckAdamOptions(group, absl::StrCat("group ", i, ":"));
    }
  }
  if (!(settings.loss_scale > 0) || !std::isfinite(settings.loss_scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("loss scale is ", settings.loss_scale));
  }
  if (!(settings.max_gradient_norm >= 0) ||
      !std::isfinite(settings.max_gradient_norm)) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_gradient_norm is ", settings.max_gradient_norm));
  }
  TERRACE_RETURN_IF_ERROR(CheckParameters(specs, arguments, parameters));
  if (arguments.norm_gradients) {
    TERRACE_RETURN_IF_ERROR(CheckNormGradients(*arguments.norm_gradients));
  }
  return settings;
}

absl::Status CheckSameStep(const StepSettings& settings_before,
                           absl::Span<const ParameterData> parameters_before,
                           const StepSettings& settings,
                           absl::Span<const ParameterData> parameters) {
  const StepSettings& before = settings_before;
  if (!SameBits(settings.loss_scale, before.loss_scale)) {
    return Different(absl::StrCat("loss scale, ", before.loss_scale));
  }
  if (!SameBits(settings.max_gradient_norm, before.max_gradient_norm)) {
    return Different(
        absl::StrCat("max_gradient_norm, ", before.max_gradient_norm));
  }
  if (settings.skip_nonfinite != before.skip_nonfinite) {
    return Different("skip_nonfinite");
  }
  if (settings.groups.size() != before.groups.size()) {
    return Different(absl::StrCat("number of groups, ", before.groups.size()));
  }
  for (size_t i = 0; i < settings.groups.size(); ++i) {
    TERRACE_RETURN_IF_ERROR(
        CheckSameOptions(before.groups[i], settings.groups[i], i));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ParameterData& now = parameters[i];
    const ParameterData& then = parameters_before[i];
    if (now.parameter != then.parameter || now.device != then.device) {
      return Different(absl::StrCat("address of parameter ", i));
    }
    const bool has_gradient = now.gradient != nullptr;
    if (has_gradient != (then.gradient != nullptr) ||
        (has_gradient && now.gradient_dtype != then.gradient_dtype)) {
      return Different(absl::StrCat("gradient of parameter ", i));
    }
  }
  return absl::OkStatus();
}

std::vector<ParameterData> WithAllGradients(
    absl::Span<const ParameterData> parameters) {
  static constexpr double kAny = 0;  // aligned for every dtype
  std::vector<ParameterData> all(parameters.begin(), parameters.end());
  for (ParameterData& data : all) {
    data.gradient = data.parameter == nullptr ? nullptr : &kAny;
    data.gradient_dtype = DType::kFloat32;
    if (data.parameter == nullptr) data.parameter = const_cast<double*>(&kAny);
  }
  return all;
}

absl::Status CheckGradualStep(const StepSettings& settings,
                              const StepArguments& arguments,
                              absl::Span<const ParameterData> parameters) {
  const char* early = nullptr;
  if (settings.max_gradient_norm > 0) early = "max_gradient_norm";
  if (settings.skip_nonfinite) early = "skip_nonfinite";
  if (settings.loss_scale != 1) early = "a loss scale";
  if (arguments.norm_gradients) early = "norm_gradients";
  if (early != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        early, " needs all gradients before the first is used; a gradual step ",
        "has none of it"));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].gradient == nullptr) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter ", i, " has a gradient before the gradual step began"));
  }
  return absl::OkStatus();
}

absl::Status CheckOrder(absl::Span<const ParameterSpec> specs,
                        absl::Span<const ParameterData> parameters,
                        absl::Span<const int> order) {
  std::vector<bool> wanted(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    wanted[i] = parameters[i].parameter != nullptr;
  }
  for (const int parameter : order) {
    const auto index = static_cast<size_t>(parameter);
    if (parameter < 0 || index >= specs.size() || !wanted[index]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the order has parameter ", parameter, ", which may not come or has ",
          "been there before; there are ", specs.size()));
    }
    wanted[index] = false;
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!wanted[i]) continue;
    return absl::InvalidArgumentError(absl::StrCat("the order lacks parameter ",
                                                   i, " ('", specs[i].name,
                                                   "'), which may come"));
  }
  return absl::OkStatus();
}

absl::Status CheckLateOrder(absl::Span<const ParameterSpec> specs,
                            absl::Span<const int> order) {
  for (const int parameter : order) {
    if (parameter >= 0 && static_cast<size_t>(parameter) < specs.size()) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "the order has parameter ", parameter, " of ", specs.size()));
  }
  return absl::OkStatus();
}

absl::Status CheckSupplied(absl::Span<const ParameterSpec> specs,
                           absl::Span<const ParameterData> parameters,
                           int parameter, const void* gradient, DType dtype) {
  const auto index = static_cast<size_t>(parameter);
  if (parameter < 0 || index >= specs.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a gradient of parameter ", parameter, " of ", specs.size()));
  }
  const char* fault = nullptr;
  if (parameters[index].parameter == nullptr) {
    fault = "is not one of those that may come";
  } else if (parameters[index].gradient != nullptr) {
    fault = "has its gradient of this step";
  } else if (gradient == nullptr) {
    fault = "has a gradient without an address";
  } else if (dtype != DType::kFloat32 && dtype != specs[index].dtype) {
    fault = "has a gradient of another dtype";
  } else if (!Aligned(gradient, dtype)) {
    fault = "has a gradient that is not aligned to its elements";
  }
  if (fault == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "parameter ", parameter, " ('", specs[index].name, "') ", fault));
}

}  // namespace terrace
