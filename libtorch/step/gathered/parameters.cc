#include "libtorch/step/gathered/parameters.h"

#include <ATen/MemoryOverlap.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "libtorch/tensor_check.h"

namespace terrace {
namespace {

// The address of tensors without elements.
constexpr double kNothing = 0;

absl::Status Error(const char* what, const std::string& called,
                   const std::string& fault) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " ", called, " ", fault));
}

// Returns what is wrong with the parameter, as the rest of a sentence, or "".
std::string ParameterFault(const at::Tensor& parameter,
                           OffloadedTensors offloaded) {
  const std::string fault = StorageFault(parameter, offloaded);
  const bool may_join =
      offloaded == OffloadedTensors::kRefused && IsOffloaded(parameter);
  return may_join ? fault + ", or make the optimizer with it" : fault;
}

}  // namespace

absl::StatusOr<ParameterSpec> DescribeTensor(const at::Tensor& parameter,
                                             const std::string& called,
                                             OffloadedTensors offloaded) {
  const std::string fault = ParameterFault(parameter, offloaded);
  if (!fault.empty()) return Error("parameter", called, fault);
  ParameterSpec spec;
  spec.dtype = *DTypeOf(parameter);
  spec.count = parameter.numel();
  spec.on_device = !parameter.is_cpu() || IsOffloaded(parameter);
  return spec;
}

absl::StatusOr<ParameterSpec> DescribeParameter(const at::Tensor& parameter,
                                                size_t position,
                                                OffloadedTensors offloaded) {
  const std::string called = absl::StrCat(position);
  TERRACE_ASSIGN_OR_RETURN(ParameterSpec spec,
                           DescribeTensor(parameter, called, offloaded));
  if (!parameter.is_leaf()) {
    return Error("parameter", called,
                 "is no leaf: it is the result of an operation");
  }
  if (at::has_internal_overlap(parameter) == at::MemOverlap::Yes) {
    return Error("parameter", called,
                 absl::StrCat("has elements that share memory: strides ",
                              TextOf(parameter.strides()), " of sizes ",
                              TextOf(parameter.sizes())));
  }
  spec.name = absl::StrCat("parameter", position);
  return spec;
}

absl::Status CheckParameter(const at::Tensor& parameter,
                            const ParameterSpec& spec,
                            const std::string& called,
                            OffloadedTensors offloaded,
                            const c10::DimVector* shape) {
  const std::string fault = ParameterFault(parameter, offloaded);
  if (!fault.empty()) return Error("parameter", called, fault);
  const at::ScalarType dtype = parameter.scalar_type();
  const bool has_shape = shape == nullptr ? parameter.numel() == spec.count
                                          : parameter.sizes() == *shape;
  if (*DTypeOf(parameter) == spec.dtype && has_shape) return absl::OkStatus();
  const char* const was = DTypeName(spec.dtype);
  return Error(
      "parameter", called,
      shape == nullptr
          ? absl::StrCat("was ", spec.count, " elements of ", was, " and is ",
                         parameter.numel(), " of ", TextOf(dtype))
          : absl::StrCat("was ", TextOf(at::IntArrayRef(*shape)), " of ", was,
                         " and is ", TextOf(parameter.sizes()), " of ",
                         TextOf(dtype)));
}

absl::StatusOr<at::Tensor> ContiguousGradient(const at::Tensor& parameter,
                                              const ParameterSpec& spec,
                                              const std::string& called,
                                              OffloadedTensors offloaded) {
  const at::Tensor gradient = WithOwnValues(parameter.grad());
  const std::string fault = StorageFault(gradient, offloaded);
  if (!fault.empty()) {
    return Error("the gradient of parameter", called, fault);
  }
  if (gradient.device() != parameter.device()) {
    return Error("the gradient of parameter", called,
                 absl::StrCat("is on ", gradient.device().str(), ", not ",
                              parameter.device().str()));
  }
  const DType dtype = *DTypeOf(gradient);
  if (gradient.sizes() != parameter.sizes() ||
      (dtype != DType::kFloat32 && dtype != spec.dtype)) {
    return Error(
        "the gradient of parameter", called,
        absl::StrCat("is ", TextOf(gradient.sizes()), " of ",
                     TextOf(gradient.scalar_type()), ", not ",
                     TextOf(parameter.sizes()), " of ", DTypeName(spec.dtype)));
  }
  // By no operation: one might bring what is offloaded before its turn.
  return gradient.variable_data().contiguous();
}

const void* GradientAddress(const at::Tensor& gradient) {
  return gradient.numel() == 0 ? &kNothing : gradient.const_data_ptr();
}

ParameterData Locate(const at::Tensor& parameter, const at::Tensor& gradient,
                     Device* device, OffloadedDevice* offloaded) {
  ParameterData data;
  if (gradient.defined()) data.gradient_dtype = *DTypeOf(gradient);
  const bool has_elements = parameter.numel() > 0;
  if (has_elements && offloaded != nullptr &&
      offloaded->Point(parameter, gradient, data)) {
    return data;
  }
  if (gradient.defined()) data.gradient = GradientAddress(gradient);
  // A parameter without elements has no address.
  data.parameter = has_elements ? parameter.mutable_data_ptr()
                                : const_cast<double*>(&kNothing);
  if (has_elements) data.device = device;
  return data;
}

}  // namespace terrace
