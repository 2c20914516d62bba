#include "runtime/optimizer/step_check.h"

#include <bit>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"

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

absl::Status Different(const std::string& what) {
  return absl::FailedPreconditionError(
      absl::StrCat("the step before is incomplete; it had another ", what));
}

}  // namespace

absl::Status CheckStep(absl::Span<const ParameterSpec> specs,
                       const StepArguments& arguments,
                       absl::Span<const ParameterData> parameters) {
  if (!std::isfinite(*arguments.learning_rate)) {
    return absl::InvalidArgumentError(
        absl::StrCat("learning rate is ", *arguments.learning_rate));
  }
  if (!(arguments.loss_scale > 0) || !std::isfinite(arguments.loss_scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("loss scale is ", arguments.loss_scale));
  }
  if (parameters.size() != specs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(parameters.size(), " parameters given, the optimizer has ",
                     specs.size()));
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    const char* fault = Fault(specs[i], parameters[i]);
    if (fault == nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("parameter ", i, " ('", specs[i].name, "') ", fault));
  }
  return absl::OkStatus();
}

absl::Status CheckSameStep(const StepArguments& arguments_before,
                           absl::Span<const ParameterData> parameters_before,
                           const StepArguments& arguments,
                           absl::Span<const ParameterData> parameters) {
  if (!SameBits(*arguments.learning_rate, *arguments_before.learning_rate)) {
    return Different(
        absl::StrCat("learning rate, ", *arguments_before.learning_rate));
  }
  if (!SameBits(arguments.loss_scale, arguments_before.loss_scale)) {
    return Different(absl::StrCat("loss scale, ", arguments_before.loss_scale));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ParameterData& now = parameters[i];
    const ParameterData& before = parameters_before[i];
    if (now.parameter != before.parameter) {
      return Different(absl::StrCat("address of parameter ", i));
    }
    const bool has_gradient = now.gradient != nullptr;
    if (has_gradient != (before.gradient != nullptr) ||
        (has_gradient && now.gradient_dtype != before.gradient_dtype)) {
      return Different(absl::StrCat("gradient of parameter ", i));
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace
