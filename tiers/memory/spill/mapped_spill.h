// Memory of this process for a SpillRoom: each range is a mapping of its own,
// and may lie below the arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "tiers/memory/host_arena.h"
#include "tiers/memory/spill/spill_source.h"

namespace terrace {

class MappedSpill final : public SpillSource {
 public:
  // The arena begins there.
  explicit MappedSpill(const std::byte* arena) : arena_(arena) {}

  absl::StatusOr<int64_t> Take(int64_t size_bytes) override;
  void Give(const Extent& range) override { ranges_.erase(range.offset); }
  void Leak() override;

 private:
  const std::byte* const arena_;
  absl::flat_hash_map<int64_t, std::unique_ptr<HostArena>>
      ranges_;  // by offset
};

}  // namespace terrace
