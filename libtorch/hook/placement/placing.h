// A Placing is one open scope of placement (terrace/torch/placement.h): where a
// thread's new CPU tensors are made, and who takes them over.
//
// Without an owner all tensors of the thread are in the scope's arena. With an
// owner those of at least kLeastBytes are in the newborn memory of the process,
// until the operation that made them has ended: what it hands out, the owner is
// then given; what a kernel made for itself is gone by then. A tensor that has
// no contents yet, as torch.empty makes it, is given once an operation of the
// thread has written it: its maker may fill it by its address first
// (waiting_tensors.h).
//
// An object is the calling thread's, until any thread ends it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "libtorch/hook/placement/newborn_owner.h"
#include "libtorch/hook/placement/placement_memory.h"

namespace terrace {

class Placing {
 public:
  // Smaller tensors of a scope with an owner are made as ever.
  static constexpr size_t kLeastBytes = 64 << 10;

  // Begins a scope of the calling thread, within those that it is in. One of
  // the two is null.
  static std::shared_ptr<Placing> Begin(std::shared_ptr<PlacementMemory> arena,
                                        std::shared_ptr<NewbornOwner> owner);
  // Returns whether the calling thread has begun a scope that is not known to
  // have ended.
  static bool MayBeOpen() { return innermost != nullptr; }
  // Memory for a tensor; null where no scope is open, or it has no room.
  struct Taken {
    std::byte* data = nullptr;
    PlacementMemory* arena = nullptr;  // the scope's; null: newborn memory
  };
  static Taken Take(size_t size_bytes);
  // Further calls do nothing. The thread that began the scope sees the end that
  // another thread made from its next tensor on.
  void End();

 private:
  Placing(std::shared_ptr<PlacementMemory> arena,
          std::shared_ptr<NewbornOwner> owner)
      : arena_(std::move(arena)), owner_(std::move(owner)) {}

  // Those that a thread has begun. A thread may end in one.
  struct Scopes {
    ~Scopes() { innermost = nullptr; }
    // The innermost is the last. One that has ended goes once it is the last.
    std::vector<std::shared_ptr<Placing>> all;
  };
  static std::vector<std::shared_ptr<Placing>>& OfThisThread() {
    thread_local Scopes scopes;
    return scopes.all;
  }
  // The innermost scope of the thread that is open, or null.
  static Placing* Current();

  static constinit thread_local Placing* innermost;

  const std::shared_ptr<PlacementMemory> arena_;
  const std::shared_ptr<NewbornOwner> owner_;
  // The flag orders nothing else.
  std::atomic<bool> has_ended_ = false;
};

}  // namespace terrace
