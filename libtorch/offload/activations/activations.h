// The tensors that autograd saves in the forward of one offloaded model. A
// tensor that is large enough is managed by the model's hook as it is saved,
// and stays the tensor that it is for all that have it. The model's own tensors
// and the arguments of a scope are left as they are.
//
// Thread-safe. The object lives on with the saved tensors, and does nothing
// once the hook is gone, or in a forked child.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/process.h"
#include "libtorch/offload/activations/storage_set.h"
#include "terrace/torch/hook.h"

namespace terrace {

class Activations {
 public:
  // Tensors of at least this many bytes are managed, but for those that share
  // storages with `kept`.
  Activations(std::weak_ptr<Hook> hook, int64_t least_bytes,
              absl::Span<const at::Tensor> kept);

  // Called where autograd saves a tensor, in a scope with these arguments.
  // Returns OK also for a tensor that is left as it is, else what
  // Hook::ManageSaved returns.
  absl::Status Save(const at::Tensor& tensor, const StorageSet& arguments);
  // Called where backward asks for a saved tensor.
  void Use(const at::Tensor& tensor);

 private:
  // Returns false also for a view of a small part of a large storage, and for a
  // small storage that is expanded.
  bool IsLarge(const at::Tensor& tensor) const;
  // Returns null when tensors are not managed any more.
  std::shared_ptr<Hook> GetHook() const;

  const Process process_;
  const std::weak_ptr<Hook> hook_;
  const int64_t least_bytes_;
  StorageSet kept_;
};

}  // namespace terrace
