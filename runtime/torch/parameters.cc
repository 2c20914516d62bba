#include "runtime/torch/parameters.h"

#include <optional>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

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
  if (!tensor.is_contiguous()) {
    return absl::StrCat("is not contiguous: strides ", Text(tensor.strides()),
                        " of sizes ", Text(tensor.sizes()));
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
  if (!fault.empty()) return Error("parameter", position, fault);
  ParameterSpec spec;
  spec.name = absl::StrCat("parameter", position);
  spec.dtype = *DTypeOf(parameter);
  spec.count = parameter.numel();
  return spec;
}

absl::StatusOr<ParameterData> LocateParameter(const at::Tensor& parameter,
                                              const ParameterSpec& spec,
                                              size_t position) {
  const std::string fault = Fault(parameter);
  if (!fault.empty()) return Error("parameter", position, fault);
  if (*DTypeOf(parameter) != spec.dtype || parameter.numel() != spec.count) {
    return Error(
        "parameter", position,
        absl::StrCat("was ", spec.count, " elements of ", DTypeName(spec.dtype),
                     " and is ", parameter.numel(), " of ",
                     Text(parameter.scalar_type())));
  }
  ParameterData data;
  data.parameter = parameter.data_ptr();
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined()) return data;
  const std::string gradient_fault = Fault(gradient);
  if (!gradient_fault.empty()) {
    return Error("the gradient of parameter", position, gradient_fault);
  }
  data.gradient_dtype = *DTypeOf(gradient);
  if (gradient.sizes() != parameter.sizes() ||
      (data.gradient_dtype != DType::kFloat32 &&
       data.gradient_dtype != spec.dtype)) {
    return Error(
        "the gradient of parameter", position,
        absl::StrCat("is ", Text(gradient.sizes()), " of ",
                     Text(gradient.scalar_type()), ", not ",
                     Text(parameter.sizes()), " of ", DTypeName(spec.dtype)));
  }
  data.gradient = gradient.const_data_ptr();
  return data;
}

}  // namespace terrace
