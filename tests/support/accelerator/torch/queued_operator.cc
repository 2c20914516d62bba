#include "tests/support/accelerator/torch/queued_operator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>

#include <exception>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/accelerator/torch/accelerator.h"
#include "tests/support/accelerator/torch/accelerator_generator.h"
#include "tests/support/accelerator/torch/cpu_aliases.h"

namespace terrace {
namespace {

using torch::jit::Stack;

// Takes indices and lengths from the CPU, as CUDA's do.
bool TakesCpuTensors(const c10::OperatorHandle& op) {
  const std::string_view name = op.operator_name().name;
  return name.find("index") != std::string_view::npos ||
         name.find("pack_padded") != std::string_view::npos;
}

bool IsTensorType(const c10::TypePtr& type) {
  return type->isSubtypeOf(*c10::TensorType::get()) ||
         type->isSubtypeOf(*c10::ListType::ofTensors()) ||
         type->kind() == c10::TypeKind::OptionalType;
}

bool IsWritten(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Also what selects by a mask.
bool DependsOnData(const c10::OperatorHandle& op, const Stack& arguments) {
  const bool may_be_mask = op.operator_name().name == "aten::index";
  if (op.hasTag(at::Tag::data_dependent_output) ||
      (op.hasTag(at::Tag::dynamic_output_shape) && !may_be_mask)) {
    return true;
  }
  for (const c10::Argument& result : op.schema().returns()) {
    if (!IsTensorType(result.type())) return true;
  }
  if (!may_be_mask) return false;
  for (const c10::IValue& argument : arguments) {
    if (!argument.isOptionalTensorList()) continue;
    for (const auto& index : argument.toOptionalTensorVector()) {
      if (index && index->defined() &&
          (index->scalar_type() == at::kBool ||
           index->scalar_type() == at::kByte)) {
        return true;
      }
    }
  }
  return false;
}

void CallBelowAutograd(const c10::OperatorHandle& op, c10::DispatchKey key,
                       Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::DisableRecordFunctionGuard unseen;
  op.redispatchBoxed(c10::DispatchKeySet(key), stack);
}

// One call of an operator, from its arguments to its results.
class OperatorCall {
 public:
  OperatorCall(const c10::OperatorHandle& op, Stack arguments)
      : op_(op),
        arguments_(std::move(arguments)),
        device_(DeviceOf(op, arguments_)),
        guard_(AcceleratorDevice(device_)) {}

  Stack Run() {
    const bool depends_on_data = DependsOnData(op_, arguments_);
    if (!depends_on_data && Shape()) {
      Queue();
    } else {
      RunNow(depends_on_data);
    }
    return std::move(results_);
  }

 private:
  const c10::Argument& argument(size_t at) const {
    return op_.schema().arguments()[at];
  }
  static c10::DeviceIndex DeviceOf(const c10::OperatorHandle& op,
                                   const Stack& arguments);
  bool Shape();
  void FitOutputs(const Stack& on_meta);
  Stack MakeCpuStack(bool has_own_outputs);
  void Queue();
  void RunNow(bool depends_on_data);
  void MoveOwnOutputs(const Stack& on_cpu);
  size_t WrittenArgumentOf(const c10::Argument& result) const;

  const c10::OperatorHandle& op_;
  const Stack arguments_;
  const c10::DeviceIndex device_;
  const c10::DeviceGuard guard_;
  CpuAliases aliases_;
  Stack results_;
};

c10::DeviceIndex OperatorCall::DeviceOf(const c10::OperatorHandle& op,
                                        const Stack& arguments) {
  c10::DeviceIndex found = -1;
  for (const c10::IValue& argument : arguments) {
    if (argument.isDevice() && argument.toDevice().is_privateuseone() &&
        found < 0) {
      found = argument.toDevice().index();
    }
    WithTensors(argument, [&](const at::Tensor& tensor) {
      if (tensor.is_privateuseone()) {
        TORCH_CHECK(found < 0 || found == tensor.device().index(),
                    "testdev: ", op.schema().name(),
                    " has tensors of two devices, testdev:",
                    static_cast<int>(found), " and ", tensor.device());
        found = tensor.device().index();
      }
      return tensor;
    });
  }
  return found < 0 ? CurrentAcceleratorDevice() : found;
}

size_t OperatorCall::WrittenArgumentOf(const c10::Argument& result) const {
  for (size_t at = 0; at < arguments_.size(); ++at) {
    if (IsWritten(argument(at)) && argument(at).alias_info()->beforeSets() ==
                                       result.alias_info()->beforeSets()) {
      return at;
    }
  }
  TORCH_CHECK(false, "testdev: ", op_.schema(), " gives a view");
}

// On the Meta device. False: it has no such kernel.
bool OperatorCall::Shape() {
  std::unordered_map<const c10::TensorImpl*, at::Tensor> known;
  Stack stack;
  for (const c10::IValue& value : arguments_) {
    if (value.isDevice()) {
      stack.emplace_back(c10::Device(c10::DeviceType::Meta));
    } else if (value.isGenerator()) {
      stack.emplace_back();
    } else {
      stack.push_back(WithTensors(value, [&](const at::Tensor& tensor) {
        if (tensor.is_cpu() && tensor.dim() == 0) return tensor;
        const auto [at, is_new] =
            known.try_emplace(tensor.unsafeGetTensorImpl());
        if (is_new) at->second = MetaTensorLike(tensor);
        return at->second;
      }));
    }
  }
  const Stack before = stack;
  try {
    CallBelowAutograd(op_, c10::DispatchKey::Meta, &stack);
  } catch (const c10::NotImplementedError&) {
    return false;
  }
  const auto& returns = op_.schema().returns();
  for (size_t at = 0; at < returns.size(); ++at) {
    if (returns[at].alias_info() != nullptr) {
      results_.push_back(arguments_[WrittenArgumentOf(returns[at])]);
    } else {
      results_.push_back(WithTensors(stack[at], [&](const at::Tensor& shaped) {
        return at::empty_strided(
            shaped.sizes(), shaped.strides(),
            shaped.options().device(AcceleratorDevice(device_)));
      }));
    }
  }
  FitOutputs(before);
  return true;
}

// An out= tensor of another size is resized, as the Meta one was.
void OperatorCall::FitOutputs(const Stack& on_meta) {
  for (size_t at = 0; at < arguments_.size(); ++at) {
    if (!argument(at).is_out() || !arguments_[at].isTensor()) continue;
    const at::Tensor& output = arguments_[at].toTensor();
    const at::Tensor& shaped = on_meta[at].toTensor();
    if (output.sizes() == shaped.sizes()) continue;
    at::native::resize_output(output, shaped.sizes());
    if (output.strides() != shaped.strides()) {
      output.unsafeGetTensorImpl()->set_sizes_and_strides(shaped.sizes(),
                                                          shaped.strides());
    }
  }
}

// With outputs of its own an out= tensor is any size, and none of the device's.
Stack OperatorCall::MakeCpuStack(bool has_own_outputs) {
  const bool is_copied = TakesCpuTensors(op_);
  bool has_generator = false;
  Stack stack;
  for (size_t at = 0; at < arguments_.size(); ++at) {
    const c10::IValue& value = arguments_[at];
    const c10::TypePtr& type = argument(at).type();
    if (value.isDevice()) {
      stack.emplace_back(c10::Device(c10::DeviceType::CPU));
    } else if (type->str().find("Generator") != std::string::npos) {
      has_generator = true;
      stack.emplace_back(DrawCpuGenerator(
          value.isNone() ? std::nullopt : std::optional(value.toGenerator()),
          device_));
    } else if (has_own_outputs && argument(at).is_out()) {
      stack.push_back(WithTensors(value, [](const at::Tensor& tensor) {
        return at::empty({0}, tensor.options().device(at::kCPU));
      }));
    } else {
      stack.push_back(WithTensors(value, [&](const at::Tensor& tensor) {
        return aliases_.Of(tensor, IsWritten(argument(at)), is_copied);
      }));
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      has_generator || !op_.hasTag(at::Tag::nondeterministic_seeded),
      "testdev: ", op_.schema().name(), " would draw from the CPU's generator");
  return stack;
}

void OperatorCall::Queue() {
  Stack stack = MakeCpuStack(/*has_own_outputs=*/false);
  std::vector<std::pair<size_t, c10::IValue>> fresh;
  const auto& returns = op_.schema().returns();
  for (size_t at = 0; at < returns.size(); ++at) {
    if (returns[at].alias_info() != nullptr) continue;
    fresh.emplace_back(at,
                       WithTensors(results_[at], [&](const at::Tensor& result) {
                         return aliases_.Of(result, /*is_written=*/true, false);
                       }));
  }
  Accelerator& accelerator = TheAccelerator();
  accelerator.streams().Submit(
      accelerator.Current(device_), op_.schema().name(), aliases_.touches(),
      [op = op_, stack, fresh = std::move(fresh)] {
        Stack own = stack;
        try {
          CallBelowAutograd(op, c10::DispatchKey::CPU, &own);
        } catch (const c10::Error& error) {
          throw TaskError(error.what_without_backtrace());
        }
        for (const auto& [at, to] : fresh) {
          std::vector<at::Tensor> made;
          WithTensors(own[at], [&](const at::Tensor& tensor) {
            made.push_back(tensor);
            return tensor;
          });
          size_t next = 0;
          WithTensors(to, [&](const at::Tensor& target) {
            return target.copy_(made.at(next++));
          });
        }
      });
}

void OperatorCall::RunNow(bool depends_on_data) {
  struct Outcome {
    Stack stack;
    std::exception_ptr error;
  };
  const auto outcome = std::make_shared<Outcome>();
  outcome->stack = MakeCpuStack(/*has_own_outputs=*/true);
  const Stack given = outcome->stack;
  Accelerator& accelerator = TheAccelerator();
  const AcceleratorStream stream = accelerator.Current(device_);
  accelerator.streams().Submit(
      stream, op_.schema().name(), aliases_.touches(), [op = op_, outcome] {
        try {
          CallBelowAutograd(op, c10::DispatchKey::CPU, &outcome->stack);
        } catch (...) {
          outcome->error = std::current_exception();
        }
      });
  const StreamMark mark = accelerator.streams().Record(stream);
  if (depends_on_data) {
    accelerator.Wait(mark);
  } else {
    accelerator.streams().WaitUnseen(mark.task);
  }
  if (outcome->error != nullptr) std::rethrow_exception(outcome->error);
  MoveOwnOutputs(given);
  const auto& returns = op_.schema().returns();
  for (size_t at = 0; at < returns.size(); ++at) {
    if (returns[at].alias_info() != nullptr) {
      results_.push_back(arguments_[WrittenArgumentOf(returns[at])]);
    } else {
      results_.push_back(
          WithTensors(outcome->stack[at], [&](const at::Tensor& made) {
            return made.to(AcceleratorDevice(device_), /*non_blocking=*/true);
          }));
    }
  }
}

void OperatorCall::MoveOwnOutputs(const Stack& on_cpu) {
  for (size_t at = 0; at < arguments_.size(); ++at) {
    if (!argument(at).is_out() || !arguments_[at].isTensor()) continue;
    const at::Tensor& output = arguments_[at].toTensor();
    const at::Tensor& made = on_cpu[at].toTensor();
    at::native::resize_output(output, made.sizes());
    output.copy_(made, /*non_blocking=*/true);
  }
}

}  // namespace

void QueueOperator(const c10::OperatorHandle& op, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count),
                  stack->end());
  torch::jit::drop(*stack, count);
  for (c10::IValue& result : OperatorCall(op, std::move(arguments)).Run()) {
    stack->push_back(std::move(result));
  }
}

}  // namespace terrace
