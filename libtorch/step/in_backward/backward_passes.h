// Backward passes, as the gradients that they accumulate tell of them. What is
// called a pass is the outermost one: a function of it may run others within
// itself, as re-entrant checkpoints do, and accumulate into a leaf several
// times.
//
//   auto passes = std::make_shared<BackwardPasses>(listener, /*a_step=*/2);
//   passes->Follow(leaves);
//   ...  // passes: the listener hears of gradients, and of each pass's end
//   passes->Break();    // none goes on
//   passes->Restart();  // counts from 0
//
// The listener is called by the thread that runs the pass, which throws what it
// returns, with no lock held; other threads wait for their turn. One thread at
// a time runs passes over these leaves, but for those that LibTorch has for
// devices. In a forked child the listener hears of nothing.
//
// A pass within a function is known for one where it runs on that function's
// thread. It does not where its leaves are on another device than the function,
// nor where 60 are within each other: such a pass is taken for one of its own,
// and the one around it for broken.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "base/process.h"
#include "libtorch/hook/leaf_hook.h"
#include "libtorch/step/in_backward/backward_functions.h"

namespace terrace {

class BackwardPasses : public std::enable_shared_from_this<BackwardPasses> {
 public:
  enum class Gradient : uint8_t {
    kOfEarlierPass,  // than the step's last one
    kOfOneTooMany,   // a pass after it
    kIncomplete,     // more of it may come before the pass ends
    kComplete,
  };
  class Listener {
   public:
    virtual ~Listener() = default;
    // It was accumulated into the leaf.
    virtual absl::Status GradientCame(const at::Tensor& leaf,
                                      Gradient gradient) = 0;
    virtual absl::Status PassEnded(bool is_last) = 0;
    // One that began did not come to its end.
    virtual void PassBroke() = 0;
  };

  // The listener outlives this, or until End.
  BackwardPasses(Listener& listener, int a_step)
      : a_step_(a_step), listener_(&listener) {}

  // Leaves that require a gradient, and no others.
  void Follow(absl::Span<const at::Tensor> leaves);
  // One that is open does not go on.
  void Break();
  void Restart();
  // The listener hears of nothing any more.
  void End();

 private:
  static constexpr int kUnknown = -1;

  class Turn;

  absl::Status Came(const at::Tensor& leaf);
  // By whose turn it is.
  absl::Status See();
  void BeginPass();
  void BreakOpen();
  absl::Status Know(int number);

  void LeftFunction();
  absl::Status EndPass(int number);

  const BackwardFunctions functions_;
  const Process process_;
  const int a_step_;
  absl::flat_hash_map<const c10::TensorImpl*, LeafHook> hooks_;
  Mutex mutex_;
  CondVar turn_ended_;
  bool is_taken_ ABSL_GUARDED_BY(mutex_) = false;

  // Of whose turn it is.
  Listener* listener_;  // null: it has ended
  int ended_ = 0;       // passes
  // Of the one that is open. Autograd's number of it is unknown as long as only
  // one within it was heard of, in this function of it.
  bool is_open_ = false;
  int number_ = kUnknown;
  uint64_t within_ = 0;
  bool is_whole_ = false;
  bool has_functions_ = false;
  // Learnt: whether functions of programs run others within themselves.
  bool reenters_ = false;
  bool is_flat_ = false;
};

}  // namespace terrace
