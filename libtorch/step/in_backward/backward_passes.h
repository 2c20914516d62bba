// Follows backward passes by the gradients that they accumulate. A pass here is
// the outermost one: its functions may run other passes within themselves, as
// re-entrant checkpoints do, and accumulate into a leaf several times.
//
//   auto passes = std::make_shared<BackwardPasses>(listener, /*a_step=*/2);
//   passes->Follow(leaves);
//   ...  // passes: the listener hears of gradients, and of each pass's end
//   passes->Break();    // no pass goes on
//   passes->Restart();  // counts from 0
//
// The thread that runs the pass calls the listener, with no lock held, and
// throws an error that the listener returns; other threads wait for their turn.
// One thread at a time runs passes over these leaves, apart from the threads
// that LibTorch has for devices. In a forked child the listener hears of
// nothing.
//
// A pass within a function is recognised where it runs on that function's
// thread. It runs on another thread where its leaves are on another device than
// the function, or where 60 passes are within each other. Such a pass is taken
// for a pass of its own, and the pass around it for a broken one.
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
    kOfEarlierPass,  // of a pass before the step's last one
    kOfOneTooMany,   // of a pass after the step's last one
    kIncomplete,     // more of it may come before the pass ends
    kComplete,
  };
  class Listener {
   public:
    virtual ~Listener() = default;
    // A gradient was accumulated into the leaf.
    virtual absl::Status GradientCame(const at::Tensor& leaf,
                                      Gradient gradient) = 0;
    virtual absl::Status PassEnded(bool is_last) = 0;
    // A pass that began did not come to its end.
    virtual void PassBroke() = 0;
  };

  // The listener outlives this object, or lives until End.
  BackwardPasses(Listener& listener, int a_step)
      : a_step_(a_step), listener_(&listener) {}

  // Follows those of these leaves that require a gradient, and no others any
  // more.
  void Follow(absl::Span<const at::Tensor> leaves);
  // A pass that is open does not go on: the listener hears that it broke.
  void Break();
  void Restart();
  // The listener hears of nothing any more.
  void End();

 private:
  static constexpr int kUnknown = -1;

  class Turn;

  absl::Status Came(const at::Tensor& leaf);
  // These are called by the thread whose turn it is.
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

  // The thread whose turn it is has all members below.
  Listener* listener_;  // null after End
  int ended_ = 0;       // passes
  // The open pass. Autograd's number of this pass is unknown as long as only a
  // pass within it was heard of, in the function `within_`.
  bool is_open_ = false;
  int number_ = kUnknown;
  uint64_t within_ = 0;
  bool is_whole_ = false;
  bool has_functions_ = false;
  // The passes so far have shown whether functions of programs run other passes
  // within themselves: some did, or a pass with such functions had none.
  bool reenters_ = false;
  bool is_flat_ = false;
};

}  // namespace terrace
