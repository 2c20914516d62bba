// The way that tensors of queues of bytes at devices have through the first
// memory. What rests below comes up through a range that its group takes with
// the device's room, both in one turn or neither: nobody holds room of one tier
// while it waits for the other's, so that no two groups wait for each other.
// What came up that way stays in memory as a resident which may leave at any
// time. What leaves a device seeks room in memory as a group does, among the
// groups and by its age; where none is, it passes
// on to a resting tier if a queue with slots has staging. Nothing passes beside
// the budget: a device copies from and to memory that is registered with it, as
// any other copy would hold up the mover's thread. Mover only.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/motion/staging_room.h"
#include "runtime/residency/byte_room.h"
#include "runtime/residency/queue_error.h"
#include "runtime/residency/working_tiers.h"
#include "runtime/residency/write_back.h"
#include "runtime/tensor/tensor_life.h"

namespace terrace {

// All outlive the passage.
struct MemoryPassageParts {
  std::function<uint64_t()> next_number;  // as groups have one, by age
  const WorkingTiers* working = nullptr;
  WriteBack* write_back = nullptr;
  StagingRoom* staging = nullptr;
};

// What all of them take on a working tier.
int64_t BytesOf(absl::Span<Tensor* const> tensors);

class MemoryPassage {
 public:
  explicit MemoryPassage(const MemoryPassageParts& parts) : parts_(parts) {}

  // Of what is wanted at that tier, and its tensors in that order: those that
  // must pass through memory. None, where it is a memory.
  static std::vector<Tensor*> Passing(absl::Span<const Want> wants,
                                      absl::Span<Tensor* const> tensors,
                                      TierId to);
  // ResourceExhausted, with the limit: whatever leaves, the group finds no room
  // on its device, or its passing tensors find none in memory.
  absl::Status Check(absl::Span<Tensor* const> tensors,
                     absl::Span<Tensor* const> passing,
                     const TierResidency& device) const;
  // Room for these in the order of the group's tensors.
  static ByteRoom::Rooms InOrder(absl::Span<Tensor* const> tensors,
                                 absl::Span<Tensor* const> passing,
                                 ByteRoom::Rooms rooms);
  // Those that leave devices and are older than number `before` come down as
  // far as there is room. Null: all of these do; else the first that waits.
  Tensor* LowerAll(ByteRoom& room, uint64_t before,
                   std::vector<QueueError>* errors) const;
  // Whether something is leaving a device, and does not wait for memory.
  bool AnyComesDown() const;

 private:
  // False: it waits.
  bool Lower(Lowering& lowering, ByteRoom& room,
             std::vector<QueueError>* errors) const;

  const MemoryPassageParts parts_;
};

}  // namespace terrace
