#include "runtime/torch/optimizer/parameters.h"

#include <ATen/MemoryOverlap.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/torch/tensor_check.h"

namespace terrace {
namespace {

// Where the gradients without elements are.
constexpr double kNothing = 0;

absl::Status Error(const char* what, size_t position,
                   const std::string& fault) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " ", position, " ", fault));
}

}  // namespace

absl::StatusOr<ParameterSpec> DescribeParameter(const at::Tensor& parameter,
                                                size_t position) {
  std::string fault = StorageFault(parameter);
  if (fault.empty() && !parameter.is_leaf()) {
    fault = "is no leaf: it is the result of an operation";
  }
  if (fault.empty() &&
      at::has_internal_overlap(parameter) == at::MemOverlap::Yes) {
    fault = absl::StrCat("has elements that share memory: strides ",
                         TextOf(parameter.strides()), " of sizes ",
                         TextOf(parameter.sizes()));
  }
  if (!fault.empty()) return Error("parameter", position, fault);
  ParameterSpec spec;
  spec.name = absl::StrCat("parameter", position);
  spec.dtype = *DTypeOf(parameter);
  spec.count = parameter.numel();
  spec.on_device = !parameter.is_cpu();
  return spec;
}

absl::Status CheckParameter(const at::Tensor& parameter,
                            const ParameterSpec& spec, size_t position) {
  const std::string fault = StorageFault(parameter);
  if (!fault.empty()) return Error("parameter", position, fault);
  if (*DTypeOf(parameter) == spec.dtype && parameter.numel() == spec.count) {
    return absl::OkStatus();
  }
  return Error(
      "parameter", position,
      absl::StrCat("was ", spec.count, " elements of ", DTypeName(spec.dtype),
                   " and is ", parameter.numel(), " of ",
                   TextOf(parameter.scalar_type())));
}

absl::StatusOr<at::Tensor> ContiguousGradient(const at::Tensor& parameter,
                                              const ParameterSpec& spec,
                                              size_t position) {
  const at::Tensor gradient = WithOwnValues(parameter.grad());
  const std::string fault = StorageFault(gradient);
  if (!fault.empty()) {
    return Error("the gradient of parameter", position, fault);
  }
  if (gradient.device() != parameter.device()) {
    return Error("the gradient of parameter", position,
                 absl::StrCat("is on ", gradient.device().str(), ", not ",
                              parameter.device().str()));
  }
  const DType dtype = *DTypeOf(gradient);
  if (gradient.sizes() != parameter.sizes() ||
      (dtype != DType::kFloat32 && dtype != spec.dtype)) {
    return Error(
        "the gradient of parameter", position,
        absl::StrCat("is ", TextOf(gradient.sizes()), " of ",
                     TextOf(gradient.scalar_type()), ", not ",
                     TextOf(parameter.sizes()), " of ", DTypeName(spec.dtype)));
  }
  return gradient.contiguous();
}

ParameterData Locate(const at::Tensor& parameter, const at::Tensor& gradient,
                     Device* device) {
  ParameterData data;
  data.parameter = parameter.mutable_data_ptr();
  data.gradient = gradient.const_data_ptr();
  data.gradient_dtype = *DTypeOf(gradient);
  // Without elements there is no address, but there is a gradient.
  if (parameter.numel() == 0) {
    data.gradient = &kNothing;
  } else {
    data.device = device;
  }
  return data;
}

}  // namespace terrace
