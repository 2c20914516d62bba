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

// Thread-safe; Install and Uninstall are not, and no other thread may make
// tensors meanwhile: LibTorch's registration is not guarded.
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

// On the thread that makes it, which ends it too; the inner one counts. The
// arena may end before it.
class PlacementScope {
 public:
  explicit PlacementScope(const PlacementArena& arena);
  ~PlacementScope();
  PlacementScope(const PlacementScope&) = delete;
  PlacementScope& operator=(const PlacementScope&) = delete;

 private:
  const std::shared_ptr<PlacementMemory> memory_;
  PlacementMemory* const outer_;
};

}  // namespace terrace
