#include "libtorch/hook/placement/placing.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/process.h"
#include "libtorch/hook/placement/births.h"

namespace terrace {
namespace {

// The arena lives for ever, as its tensors may.
struct Newborns {
  const Process process;
  std::shared_ptr<PlacementMemory> memory;
};
std::atomic<const Newborns*> newborns = nullptr;

std::shared_ptr<PlacementMemory> MapNewborns() {
  const int64_t bytes =
      int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  absl::StatusOr<std::shared_ptr<PlacementMemory>> memory =
      PlacementMemory::Map(bytes);
  return memory.ok() ? *std::move(memory) : nullptr;
}

}  // namespace

constinit thread_local Placing* Placing::innermost = nullptr;

PlacementMemory* NewbornMemory() {
  static const Newborns* const made = [] {
    auto* const first = new Newborns{{}, MapNewborns()};
    newborns.store(first, std::memory_order_release);
    return first;
  }();
  return made->process.IsCurrent() ? made->memory.get() : nullptr;
}

bool IsNewborn(const void* address) {
  const Newborns* const made = newborns.load(std::memory_order_acquire);
  return made != nullptr && made->memory != nullptr &&
         made->memory->Contains(address);
}

void EndNewborn(std::byte* address) {
  const Newborns& made = *newborns.load(std::memory_order_acquire);
  if (made.process.IsCurrent()) made.memory->Give(address);
}

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
