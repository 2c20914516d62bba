#include "terrace/torch/activation_scope.h"

#include <utility>

#include "libtorch/offload/activations/saving_scope.h"

namespace terrace {

ActivationScope::ActivationScope() = default;

ActivationScope::ActivationScope(std::shared_ptr<SavingScope> scope)
    : scope_(std::move(scope)) {}

ActivationScope::~ActivationScope() { End(); }

ActivationScope::ActivationScope(ActivationScope&& other) noexcept = default;

ActivationScope& ActivationScope::operator=(ActivationScope&& other) noexcept {
  if (this == &other) return *this;
  End();
  scope_ = std::move(other.scope_);
  return *this;
}

void ActivationScope::End() {
  if (scope_ == nullptr) return;
  std::exchange(scope_, nullptr)->End();
}

}  // namespace terrace
