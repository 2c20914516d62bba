#include "libtorch/hook/leaf_hook.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"

namespace terrace {
namespace {

// Accumulators of LibTorch hold this mutex while they add to a gradient.
struct Accumulation : torch::autograd::Node {
  static std::mutex& MutexOf(torch::autograd::Node& accumulator) {
    return accumulator.*(&Accumulation::mutex_);
  }
};

// The leaf's accumulator owns this hook.
class AfterAccumulation final : public torch::autograd::FunctionPostHook {
 public:
  using HasEnded = std::shared_ptr<const std::atomic<bool>>;
  AfterAccumulation(torch::autograd::Node& accumulator, LeafHook::Call call,
                    HasEnded has_ended)
      : accumulator_(accumulator),
        call_(std::move(call)),
        has_ended_(std::move(has_ended)) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& /*inputs*/) override {
    if (has_ended_->load()) return outputs;
    absl::Status status;
    {
      // The lock keeps another thread's backward from adding to the same
      // gradient during the call.
      const std::lock_guard<std::mutex> lock(
          Accumulation::MutexOf(accumulator_));
      status = call_();
    }
    TORCH_CHECK(status.ok(), "terrace: ", std::string(status.message()));
    return outputs;
  }

 private:
  torch::autograd::Node& accumulator_;
  const LeafHook::Call call_;
  const HasEnded has_ended_;
};

}  // namespace

LeafHook::LeafHook(const at::Tensor& leaf, Call call)
    : leaf_(leaf.unsafeGetTensorImpl()),
      accumulator_(AccumulatorOf(leaf)),
      has_ended_(std::make_shared<std::atomic<bool>>(false)) {
  accumulator_->add_post_hook(std::make_unique<AfterAccumulation>(
      *accumulator_, std::move(call), has_ended_));
}

// The hook stays at the accumulator: another thread may be going through the
// accumulator's hooks.
LeafHook::~LeafHook() {
  if (has_ended_ != nullptr) has_ended_->store(true);
}

// A frozen leaf has an accumulator only if it was not frozen before, so it is
// thawed for a moment. It keeps the accumulator when it is thawed later.
LeafHook::Accumulator LeafHook::AccumulatorOf(const at::Tensor& leaf) {
  if (leaf.requires_grad()) {
    return torch::autograd::impl::grad_accumulator(leaf);
  }
  leaf.set_requires_grad(true);
  const absl::Cleanup freeze = [&] { leaf.set_requires_grad(false); };
  return torch::autograd::impl::grad_accumulator(leaf);
}

}  // namespace terrace
