// A scope in which one thread's activations are saved, and the stack of those
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
  // For the calling thread, within those that it is in; the storages of
  // `arguments` stay in memory.
  static std::shared_ptr<SavingScope> Begin(
      std::shared_ptr<Activations> activations,
      absl::Span<const at::Tensor> arguments);
  // The innermost of the calling thread that has not ended; null: none.
  static std::shared_ptr<SavingScope> Current();

  // Any thread. Again: nothing.
  void End();

  // As Activations::Save.
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
  // Orders nothing else: another thread's end is seen some time.
  std::atomic<bool> has_ended_ = false;
};

}  // namespace terrace
