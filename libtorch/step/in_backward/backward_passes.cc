#include "libtorch/step/in_backward/backward_passes.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <string>

#include "absl/container/flat_hash_set.h"
#include "base/status_macros.h"
#include "libtorch/accelerator/guarded.h"

namespace terrace {

// A thread's turn to tell the listener of passes. A turn is false when the
// listener hears of nothing any more, or belongs to another process.
class BackwardPasses::Turn {
 public:
  explicit Turn(BackwardPasses& passes) : passes_(passes) {
    if (!passes_.process_.IsCurrent()) return;
    MutexLock lock(passes_.mutex_);
    while (passes_.is_taken_) passes_.turn_ended_.Wait(passes_.mutex_);
    passes_.is_taken_ = true;
    is_ours_ = true;
  }
  ~Turn() {
    if (!is_ours_) return;
    MutexLock lock(passes_.mutex_);
    passes_.is_taken_ = false;
    passes_.turn_ended_.Signal();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  explicit operator bool() const {
    return is_ours_ && passes_.listener_ != nullptr;
  }

 private:
  BackwardPasses& passes_;
  bool is_ours_ = false;
};

void BackwardPasses::Follow(absl::Span<const at::Tensor> leaves) {
  absl::flat_hash_set<const c10::TensorImpl*> wanted;
  for (const at::Tensor& leaf : leaves) {
    if (!leaf.requires_grad() || !leaf.is_leaf()) continue;
    const c10::TensorImpl* const key = leaf.unsafeGetTensorImpl();
    wanted.insert(key);
    const auto known = hooks_.find(key);
    if (known != hooks_.end() && !known->second.IsOf(leaf)) hooks_.erase(known);
    hooks_.try_emplace(key, leaf, [passes = weak_from_this(), leaf] {
      const std::shared_ptr<BackwardPasses> found = passes.lock();
      return found == nullptr ? absl::OkStatus() : found->Came(leaf);
    });
  }
  absl::erase_if(
      hooks_, [&](const auto& hook) { return !wanted.contains(hook.first); });
}

void BackwardPasses::Break() {
  if (const Turn turn(*this); turn) BreakOpen();
}

void BackwardPasses::Restart() {
  if (const Turn turn(*this); turn) {
    ended_ = 0;
    is_open_ = false;
  }
}

void BackwardPasses::End() {
  if (const Turn turn(*this); turn) listener_ = nullptr;
}

absl::Status BackwardPasses::Came(const at::Tensor& leaf) {
  const Turn turn(*this);
  if (!turn) return absl::OkStatus();
  TERRACE_RETURN_IF_ERROR(See());
  if (ended_ >= a_step_) {
    is_open_ = false;  // the pass has touched nothing
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
  listener_->PassBroke();
}

// `number` is autograd's number of the open pass, which this thread is in.
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
  const Turn turn(*this);
  if (!turn) return;
  const int number = ::torch::autograd::get_current_graph_task_id();
  within_ = 0;
  if (!is_open_ || number_ == number) return;
  if (number_ != kUnknown) {  // the number of a pass that broke
    BreakOpen();
    is_open_ = true;
  }
  if (!Know(number).ok()) BreakOpen();
}

absl::Status BackwardPasses::EndPass(int number) {
  const Turn turn(*this);
  if (!turn || !is_open_ || number_ != number) return absl::OkStatus();
  is_open_ = false;
  ++ended_;
  if (has_functions_ && !reenters_) is_flat_ = true;
  return listener_->PassEnded(ended_ == a_step_);
}

}  // namespace terrace
