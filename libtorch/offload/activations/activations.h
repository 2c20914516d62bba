// Of one offloaded model, what autograd saves in its forward: large enough, it
// is managed by the model's hook as it is saved, and stays the tensor that it
// is for all that have it. The model's own tensors and the arguments of a scope
// are left in memory.
//
// Thread-safe. Lives on with what was saved, and does nothing once the hook is
// gone or in a forked child.
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
  // Of at least so many bytes; `kept` stay in memory.
  Activations(std::weak_ptr<Hook> hook, int64_t least_bytes,
              absl::Span<const at::Tensor> kept);

  // Where autograd saves a tensor, in a scope with these arguments; what is
  // left in memory is OK. Else what Hook::ManageSaved says.
  absl::Status Save(const at::Tensor& tensor, const StorageSet& arguments);
  // Where backward asks for it.
  void Use(const at::Tensor& tensor);

 private:
  // Of a view of a small part, as of what is expanded: false.
  bool IsLarge(const at::Tensor& tensor) const;
  // Null: nothing is managed any more.
  std::shared_ptr<Hook> GetHook() const;

  const Process process_;
  const std::weak_ptr<Hook> hook_;
  const int64_t least_bytes_;
  StorageSet kept_;
};

}  // namespace terrace
