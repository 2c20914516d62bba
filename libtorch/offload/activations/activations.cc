#include "libtorch/offload/activations/activations.h"

#include <utility>

namespace terrace {

Activations::Activations(std::weak_ptr<Hook> hook, int64_t least_bytes,
                         absl::Span<const at::Tensor> kept)
    : hook_(std::move(hook)), least_bytes_(least_bytes) {
  kept_.Add(kept);
}

absl::Status Activations::Save(const at::Tensor& tensor,
                               const StorageSet& arguments) {
  if (!IsLarge(tensor) || kept_.Has(tensor) || arguments.Has(tensor)) {
    return absl::OkStatus();
  }
  const std::shared_ptr<Hook> hook = GetHook();
  if (hook == nullptr) return absl::OkStatus();
  return hook->ManageSaved(tensor).status();
}

void Activations::Use(const at::Tensor& tensor) {
  if (!IsLarge(tensor)) return;
  const std::shared_ptr<Hook> hook = GetHook();
  if (hook != nullptr) hook->UseSaved(tensor);
}

bool Activations::IsLarge(const at::Tensor& tensor) const {
  if (tensor.layout() != at::kStrided || !tensor.has_storage()) return false;
  const auto elements = static_cast<int64_t>(tensor.nbytes());
  const auto storage = static_cast<int64_t>(
      tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes());
  return elements >= least_bytes_ && storage >= least_bytes_;
}

std::shared_ptr<Hook> Activations::GetHook() const {
  return process_.IsCurrent() ? hook_.lock() : nullptr;
}

}  // namespace terrace
