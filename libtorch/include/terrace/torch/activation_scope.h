// A scope around a model's forward: activations that autograd saves in it for
// backward are below in between. It is a scope since LibTorch has no hooks of
// modules.
//
//   at::Tensor answer;
//   {
//     const terrace::ActivationScope saving = (*offload)->SaveActivations();
//     answer = model->forward(inputs);
//   }
//   loss(answer).backward();
//
// A scope counts for the thread that began it, until its end, and for no other
// thread; of several scopes on a thread the innermost counts. Backward needs no
// scope: saved tensors come back wherever they are asked for. A part of the
// model that runs forward again in backward, as a checkpointed segment does,
// saves in memory, unless it has a scope.
#pragma once

#include <memory>

namespace terrace {

class SavingScope;

// Move-only. A scope may be moved to another thread and end there: the thread
// that began the scope sees that from its next saved tensor on.
class ActivationScope {
 public:
  ActivationScope();  // a scope that does nothing
  ~ActivationScope();
  ActivationScope(ActivationScope&& other) noexcept;
  ActivationScope& operator=(ActivationScope&& other) noexcept;
  // Takes a scope that Offload::SaveActivations has begun.
  explicit ActivationScope(std::shared_ptr<SavingScope> scope);

  // Ends the scope. Tensors that were saved by then are below as before.
  // Further calls do nothing.
  void End();

 private:
  std::shared_ptr<SavingScope> scope_;  // the thread that began it has it too
};

}  // namespace terrace
