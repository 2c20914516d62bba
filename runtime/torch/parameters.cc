#include "runtime/torch/parameters.h"

#include <ATen/MemoryOverlap.h>

#include <optional>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

// Where the gradients without elements are.
constexpr double kNothing = 0;

std::optional<DType> DTypeOf(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kHalf:
      return DType::kFloat16;
    default:
      return std::nullopt;
  }
}

std::string Text(const auto& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

// What is wrong with where and how a tensor keeps its numbers, or "".
std::string Fault(const at::Tensor& tensor) {
  if (!tensor.defined()) return "is undefined";
  if (tensor.layout() != at::kStrided) {
    return absl::StrCat("is ", Text(tensor.layout()),
                        "; only dense tensors can be stepped");
  }
  if (!tensor.device().is_cpu()) {
    return absl::StrCat("is on ", tensor.device().str(),
                        "; only CPU memory is supported");
  }
  if (!DTypeOf(tensor)) {
    return absl::StrCat("is ", Text(tensor.scalar_type()),
                        "; only fp32, bf16 and fp16 are supported");
  }
  if (tensor.is_neg() || tensor._is_zerotensor()) {
    return "is a lazy view without values of its own";
  }
  return "";
}

absl::Status Error(const char* what, size_t position,
                   const std::string& fault) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " ", position, " ", fault));
}

}  // namespace

absl::StatusOr<ParameterSpec> DescribeParameter(const at::Tensor& parameter,
                                                size_t position) {
  std::string fault = Fault(parameter);
  if (fault.empty() && !parameter.is_leaf()) {
    fault = "is no leaf: it is the result of an operation";
  }
  if (fault.empty() &&
      at::has_internal_overlap(parameter) == at::MemOverlap::Yes) {
    fault = absl::StrCat("has elements that share memory: strides ",
                         Text(parameter.strides()), " of sizes ",
                         Text(parameter.sizes()));
  }
  if (!fault.empty()) return Error("parameter", position, fault);
  ParameterSpec spec;
  spec.name = absl::StrCat("parameter", position);
  spec.dtype = *DTypeOf(parameter);
  spec.count = parameter.numel();
  return spec;
}

absl::Status CheckParameter(const at::Tensor& parameter,
                            const ParameterSpec& spec, size_t position) {
  const std::string fault = Fault(parameter);
  if (!fault.empty()) return Error("parameter", position, fault);
  if (*DTypeOf(parameter) == spec.dtype && parameter.numel() == spec.count) {
    return absl::OkStatus();
  }
  return Error(
      "parameter", position,
      absl::StrCat("was ", spec.count, " elements of ", DTypeName(spec.dtype),
                   " and is ", parameter.numel(), " of ",
                   Text(parameter.scalar_type())));
}

absl::StatusOr<at::Tensor> ContiguousGradient(const at::Tensor& parameter,
                                              const ParameterSpec& spec,
                                              size_t position) {
  at::Tensor gradient = parameter.grad();
  if (gradient.layout() == at::kStrided) {
    // What autograd made lazily gets values.
    if (gradient._is_zerotensor()) gradient = gradient.clone();
    gradient = gradient.resolve_neg();
  }
  const std::string fault = Fault(gradient);
  if (!fault.empty()) {
    return Error("the gradient of parameter", position, fault);
  }
  const DType dtype = *DTypeOf(gradient);
  if (gradient.sizes() != parameter.sizes() ||
      (dtype != DType::kFloat32 && dtype != spec.dtype)) {
    return Error(
        "the gradient of parameter", position,
        absl::StrCat("is ", Text(gradient.sizes()), " of ",
                     Text(gradient.scalar_type()), ", not ",
                     Text(parameter.sizes()), " of ", DTypeName(spec.dtype)));
  }
  return gradient.contiguous();
}

ParameterData Locate(const at::Tensor& parameter, const at::Tensor& gradient) {
  ParameterData data;
  data.parameter = parameter.mutable_data_ptr();
  data.gradient = gradient.const_data_ptr();
  data.gradient_dtype = *DTypeOf(gradient);
  // Without elements there is no address, but there is a gradient.
  if (parameter.numel() == 0) data.gradient = &kNothing;
  return data;
}

}  // namespace terrace
