// Memory of an arena's memory file for a SpillRoom, so that who has mapped the
// arena has it too: ranges of the addresses that the file has for that.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "tiers/extent_allocator.h"
#include "tiers/memory/host_arena.h"
#include "tiers/memory/spill/spill_source.h"

namespace terrace {

class SharedSpill final : public SpillSource {
 public:
  // The arena, which has HostArenaOptions::spill_bytes, outlives it.
  explicit SharedSpill(HostArena& arena);

  absl::StatusOr<int64_t> Take(int64_t size_bytes) override;
  bool TakeAt(const Extent& range) override;
  // What is not taken has no pages from here on, whoever has populated it.
  void EmptyFree();
  void Give(const Extent& range) override;
  // As the arena is: what is given back keeps its pages.
  void Leak() override { has_leaked_ = true; }

 private:
  HostArena& arena_;
  ExtentAllocator space_;  // counts from the arena's spill
  bool has_leaked_ = false;
};

}  // namespace terrace
