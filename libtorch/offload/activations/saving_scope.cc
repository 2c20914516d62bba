#include "libtorch/offload/activations/saving_scope.h"

#include <utility>
#include <vector>

namespace terrace {
namespace {

// The innermost scope is the last. A scope that has ended goes once it is the
// last.
thread_local std::vector<std::shared_ptr<SavingScope>> scopes;

}  // namespace

SavingScope::SavingScope(std::shared_ptr<Activations> activations,
                         absl::Span<const at::Tensor> arguments)
    : activations_(std::move(activations)) {
  arguments_.Add(arguments);
}

std::shared_ptr<SavingScope> SavingScope::Begin(
    std::shared_ptr<Activations> activations,
    absl::Span<const at::Tensor> arguments) {
  std::shared_ptr<SavingScope> scope(
      new SavingScope(std::move(activations), arguments));
  scopes.push_back(scope);
  return scope;
}

std::shared_ptr<SavingScope> SavingScope::Current() {
  while (!scopes.empty()) {
    if (!scopes.back()->has_ended_.load(std::memory_order_relaxed)) {
      return scopes.back();
    }
    scopes.pop_back();
  }
  return nullptr;
}

void SavingScope::End() {
  has_ended_.store(true, std::memory_order_relaxed);
  Current();  // removes the scope where it is the calling thread's innermost
}

}  // namespace terrace
