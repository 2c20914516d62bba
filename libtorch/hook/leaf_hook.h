// What is called whenever backward has accumulated a gradient into a leaf,
// until the object's end, by the thread that has done it: `.grad` is all of
// what that pass has given by then, and no other pass adds to it during the
// call. What the call returns but OK ends the pass with an exception.
//
// The call lives as long as the object or the leaf's accumulator, which a graph
// may keep. One thread at a time makes them, and none in backward over the leaf
// meanwhile; they end beside anything.
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
  // A frozen leaf has its gradients told from when it requires them.
  LeafHook(const at::Tensor& leaf, Call call);
  ~LeafHook();
  LeafHook(LeafHook&& other) noexcept = default;
  LeafHook& operator=(LeafHook&& other) noexcept = delete;
  LeafHook(const LeafHook&) = delete;
  LeafHook& operator=(const LeafHook&) = delete;

  // False too where LibTorch has made the leaf another accumulator since, as
  // for data of another kind.
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
  Accumulator accumulator_;  // has the leaf
  // Known to the accumulator, which may be calling; null: moved from.
  std::shared_ptr<std::atomic<bool>> has_ended_;
};

}  // namespace terrace
