// What autograd saves of a model's activations for backward, below in between:
// a scope around the model's forward, since LibTorch has no hooks of modules.
//
//   at::Tensor answer;
//   {
//     const terrace::ActivationScope saving = (*offload)->SaveActivations();
//     answer = model->forward(inputs);
//   }
//   loss(answer).backward();
//
// It counts for the thread that began it, until its end, and for no other; of
// several on a thread the innermost counts. Backward needs none: what was saved
// comes back wherever it is asked for. What runs forward again in backward, as
// a checkpointed segment does, saves in memory, unless it has a scope.
#pragma once

#include <memory>

namespace terrace {

class SavingScope;

// Move-only. It may be moved to another thread and end there: the thread that
// began it sees that from its next saved tensor on.
class ActivationScope {
 public:
  ActivationScope();  // of nothing
  ~ActivationScope();
  ActivationScope(ActivationScope&& other) noexcept;
  ActivationScope& operator=(ActivationScope&& other) noexcept;
  // What Offload::SaveActivations has begun.
  explicit ActivationScope(std::shared_ptr<SavingScope> scope);

  // What was saved by then is below as before. Again: nothing.
  void End();

 private:
  std::shared_ptr<SavingScope> scope_;  // the thread that began it has it too
};

}  // namespace terrace
