// Where LibTorch's CPU tensors are made: in an arena, while a scope is open on
// the thread that makes them, and wherever they were before otherwise.
//
//   auto installed = terrace::PlacementAllocator::Install();
//   auto arena = terrace::PlacementArena::Create(64 << 20);
//   {
//     const terrace::PlacementScope scope(*arena);
//     at::Tensor in_arena = at::empty({1000});
//   }
//
// A scope of a hook's, or of an Offload's Placement(), has no arena: tensors of
// 64 KiB and more that operations of the thread make are that hook's from the
// end of the operation on, and live below as parameters do (hook.h).
//
// It is LibTorch's own allocator that is replaced, for the process. Tensors
// that exist keep theirs, also when they grow. What does not fit an arena is
// made outside. Memory that a tensor has in an arena stays until the tensor
// ends, whatever has become of arena and allocator meanwhile. LibTorch does not
// ask it for memory of others (from_blob), of mapped files, and of shared and
// pinned tensors.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

class PlacementMemory;
class Placing;

// Thread-safe; but while Install or Uninstall runs, no other thread may make
// tensors: LibTorch's registration is not guarded.
class PlacementAllocator {
 public:
  // Again: nothing. FailedPrecondition: one of a higher priority is in its
  // place, which refuses ours.
  static absl::Status Install();
  // The one before is back. FailedPrecondition: another was installed since, or
  // ours is not installed.
  static absl::Status Uninstall();
  static bool installed();
};

// Addresses of its own, each tensor's at a multiple of 4 KiB. Thread-safe.
class PlacementArena {
 public:
  // InvalidArgument: size_bytes <= 0. ResourceExhausted: no such memory.
  static absl::StatusOr<PlacementArena> Create(int64_t size_bytes);
  ~PlacementArena();
  PlacementArena(PlacementArena&&) noexcept;
  PlacementArena& operator=(PlacementArena&&) noexcept;

  int64_t size_bytes() const;
  int64_t used_bytes() const;  // in whole pages
  bool Contains(const void* address) const;

 private:
  friend class PlacementScope;
  explicit PlacementArena(std::shared_ptr<PlacementMemory> memory);

  // Shared with the tensors that are in it.
  std::shared_ptr<PlacementMemory> memory_;
};

// Counts for the thread that made it, until its end; the innermost one counts.
// Move-only. A scope may be moved to another thread and end there: the thread
// that made it sees that from its next tensor on. The arena may end before it.
class PlacementScope {
 public:
  PlacementScope();  // a scope that does nothing
  explicit PlacementScope(const PlacementArena& arena);
  ~PlacementScope();
  PlacementScope(PlacementScope&& other) noexcept;
  PlacementScope& operator=(PlacementScope&& other) noexcept;
  // Takes a scope that Hook::Place has begun.
  explicit PlacementScope(std::shared_ptr<Placing> scope);

  // Further calls do nothing.
  void End();

 private:
  std::shared_ptr<Placing> scope_;  // the thread that made it has it too
};

}  // namespace terrace
