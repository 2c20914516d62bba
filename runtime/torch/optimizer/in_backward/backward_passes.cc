#include "runtime/torch/optimizer/in_backward/backward_passes.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <string>

#include "absl/container/flat_hash_set.h"
#include "runtime/base/status_macros.h"
#include "runtime/torch/guarded.h"

namespace terrace {

void BackwardPasses::Follow(absl::Span<const at::Tensor> leaves) {
  absl::flat_hash_set<const c10::TensorImpl*> wanted;
  for (const at::Tensor& leaf : leaves) {
    if (!leaf.requires_grad() || !leaf.is_leaf()) continue;
    const c10::TensorImpl* const key = leaf.unsafeGetTensorImpl();
    wanted.insert(key);
    hooks_.try_emplace(key, leaf, [passes = weak_from_this(), leaf] {
      const std::shared_ptr<BackwardPasses> found = passes.lock();
      return found == nullptr ? absl::OkStatus() : found->Came(leaf);
    });
  }
  absl::erase_if(
      hooks_, [&](const auto& hook) { return !wanted.contains(hook.first); });
}

void BackwardPasses::Break() {
  MutexLock lock(mutex_);
  BreakOpen();
}

void BackwardPasses::Restart() {
  MutexLock lock(mutex_);
  ended_ = 0;
  is_open_ = false;
}

void BackwardPasses::End() {
  MutexLock lock(mutex_);
  listener_ = nullptr;
}

absl::Status BackwardPasses::Came(const at::Tensor& leaf) {
  MutexLock lock(mutex_);
  if (listener_ == nullptr) return absl::OkStatus();
  TERRACE_RETURN_IF_ERROR(See());
  if (ended_ >= a_step_) {
    is_open_ = false;  // it has touched nothing
    return listener_->GradientCame(leaf, Gradient::kOfOneTooMany);
  }
  if (ended_ + 1 < a_step_) {
    return listener_->GradientCame(leaf, Gradient::kOfEarlierPass);
  }
  return listener_->GradientCame(
      leaf, is_whole_ ? Gradient::kIncomplete : Gradient::kComplete);
}

absl::Status BackwardPasses::See() {
  const uint64_t within = BackwardFunctions::Outermost();
  if (within == 0) {
    const int number = ::torch::autograd::get_current_graph_task_id();
    if (is_open_ && number_ == number) return absl::OkStatus();
    BeginPass();
    has_functions_ = BackwardFunctions::HasProgramFunctions();
    is_whole_ = reenters_ || (has_functions_ && !is_flat_);
    return Know(number);
  }
  reenters_ = true;
  if (!is_open_ || (number_ == kUnknown && within_ != within)) {
    BeginPass();
    number_ = kUnknown;
  }
  is_whole_ = true;
  if (within_ != within) {
    within_ = within;
    BackwardFunctions::AfterOutermost([passes = weak_from_this()] {
      if (const auto found = passes.lock()) found->LeftFunction();
    });
  }
  return absl::OkStatus();
}

void BackwardPasses::BeginPass() {
  BreakOpen();
  is_open_ = true;
  within_ = 0;
  has_functions_ = false;
}

void BackwardPasses::BreakOpen() {
  if (!is_open_) return;
  is_open_ = false;
  if (listener_ != nullptr) listener_->PassBroke();
}

// That of the pass that is open, in which this thread is.
absl::Status BackwardPasses::Know(int number) {
  number_ = number;
  return Guarded(c10::kCPU, [&] {
    ::torch::autograd::Engine::get_default_engine().queue_callback(
        [passes = weak_from_this(), number] {
          const std::shared_ptr<BackwardPasses> found = passes.lock();
          if (found == nullptr) return;
          const absl::Status status = found->EndPass(number);
          TORCH_CHECK(status.ok(), "terrace: ", std::string(status.message()));
        });
  });
}

// This thread is in the pass itself again.
void BackwardPasses::LeftFunction() {
  MutexLock lock(mutex_);
  const int number = ::torch::autograd::get_current_graph_task_id();
  within_ = 0;
  if (!is_open_ || number_ == number) return;
  if (number_ != kUnknown) {  // of one that broke
    BreakOpen();
    is_open_ = true;
  }
  if (!Know(number).ok()) BreakOpen();
}

absl::Status BackwardPasses::EndPass(int number) {
  MutexLock lock(mutex_);
  if (!is_open_ || number_ != number) return absl::OkStatus();
  is_open_ = false;
  ++ended_;
  if (has_functions_ && !reenters_) is_flat_ = true;
  if (listener_ == nullptr) return absl::OkStatus();
  return listener_->PassEnded(ended_ == a_step_);
}

}  // namespace terrace
