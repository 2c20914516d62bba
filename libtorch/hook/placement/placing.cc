#include "libtorch/hook/placement/placing.h"

#include <atomic>
#include <utility>
#include <vector>

#include "libtorch/hook/placement/births.h"
#include "libtorch/hook/placement/newborn_memory.h"

namespace terrace {
constinit thread_local Placing* Placing::innermost = nullptr;

std::shared_ptr<Placing> Placing::Begin(std::shared_ptr<PlacementMemory> arena,
                                        std::shared_ptr<NewbornOwner> owner) {
  std::shared_ptr<Placing> scope(
      new Placing(std::move(arena), std::move(owner)));
  if (scope->owner_ != nullptr) Births::OfThisThread().BeginWatching();
  OfThisThread().push_back(scope);
  innermost = scope.get();
  Births::OfThisThread().SetOwner(scope->owner_);
  return scope;
}

Placing* Placing::Current() {
  if (!MayBeOpen()) return nullptr;
  std::vector<std::shared_ptr<Placing>>& scopes = OfThisThread();
  while (!scopes.empty() &&
         scopes.back()->has_ended_.load(std::memory_order_relaxed)) {
    if (scopes.back()->owner_ != nullptr) {
      Births::OfThisThread().EndWatching();
    }
    scopes.pop_back();
  }
  Placing* const current = scopes.empty() ? nullptr : scopes.back().get();
  if (current != innermost) {
    innermost = current;
    Births::OfThisThread().SetOwner(current == nullptr ? nullptr
                                                       : current->owner_);
  }
  return innermost;
}

Placing::Taken Placing::Take(size_t size_bytes) {
  Placing* const scope = Current();
  if (scope == nullptr) return {};
  if (scope->owner_ == nullptr) {
    std::byte* const taken = scope->arena_->Take(size_bytes);
    return {taken, taken == nullptr ? nullptr : scope->arena_.get()};
  }
  PlacementMemory* const memory = NewbornMemory();
  if (size_bytes < kLeastBytes || memory == nullptr) return {};
  std::byte* const taken = memory->Take(size_bytes);
  if (taken != nullptr) Births::OfThisThread().Note(taken);
  return {taken};
}

void Placing::End() {
  has_ended_.store(true, std::memory_order_relaxed);
  Current();  // where it is the calling thread's innermost
}

}  // namespace terrace
