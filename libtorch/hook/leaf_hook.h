// A LeafHook calls a function whenever backward has accumulated a gradient into
// a leaf, for as long as the LeafHook lives. The thread that has accumulated
// the gradient makes the call: `.grad` has by then all that its pass has given,
// and no other pass adds to it during the call. A status other than OK ends the
// pass with an exception.
//
// The function lives as long as the LeafHook or the leaf's accumulator, which a
// graph may keep. One thread at a time makes LeafHooks, while no thread is in
// backward over the leaf. A LeafHook may end at any time.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"

namespace terrace {

class LeafHook {
 public:
  using Call = std::function<absl::Status()>;
  // A frozen leaf tells of its gradients from when it requires them.
  LeafHook(const at::Tensor& leaf, Call call);
  ~LeafHook();
  LeafHook(LeafHook&& other) noexcept = default;
  LeafHook& operator=(LeafHook&& other) noexcept = delete;
  LeafHook(const LeafHook&) = delete;
  LeafHook& operator=(const LeafHook&) = delete;

  // Returns false for another leaf, and also where LibTorch has made the leaf
  // another accumulator since, as for data of another kind.
  bool IsOf(const at::Tensor& leaf) const {
    return leaf_ == leaf.unsafeGetTensorImpl() &&
           accumulator_ == AccumulatorOf(leaf);
  }

 private:
  // LibTorch's own reference to a leaf's accumulator is a weak one.
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(
      std::declval<const at::Tensor&>()));

  static Accumulator AccumulatorOf(const at::Tensor& leaf);

  const c10::TensorImpl* leaf_;
  Accumulator accumulator_;  // keeps the leaf alive
  // The accumulator's hook, which may be in a call, shares this flag. It is
  // null after a move.
  std::shared_ptr<std::atomic<bool>> has_ended_;
};

}  // namespace terrace
