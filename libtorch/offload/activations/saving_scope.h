// A scope in which one thread's activations are saved, and the stack of scopes
// that the thread is in.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "libtorch/offload/activations/activations.h"
#include "libtorch/offload/activations/storage_set.h"

namespace terrace {

class SavingScope {
 public:
  // Begins a scope for the calling thread, within the scopes that the thread is
  // in. The storages of `arguments` are left as they are.
  static std::shared_ptr<SavingScope> Begin(
      std::shared_ptr<Activations> activations,
      absl::Span<const at::Tensor> arguments);
  // Returns the calling thread's innermost scope that has not ended, or null.
  static std::shared_ptr<SavingScope> Current();

  // Any thread may end the scope. Further calls do nothing.
  void End();

  // Saves a tensor as Activations::Save does.
  absl::Status Save(const at::Tensor& tensor) const {
    return activations_->Save(tensor, arguments_);
  }
  const std::shared_ptr<Activations>& activations() const {
    return activations_;
  }

 private:
  SavingScope(std::shared_ptr<Activations> activations,
              absl::Span<const at::Tensor> arguments);

  const std::shared_ptr<Activations> activations_;
  StorageSet arguments_;
  // The flag orders nothing else. A thread sees some time later that another
  // thread has ended its scope.
  std::atomic<bool> has_ended_ = false;
};

}  // namespace terrace
