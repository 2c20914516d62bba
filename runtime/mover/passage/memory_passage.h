// The way that tensors of queues of bytes at devices have through the first
// memory. What rests below comes up through a range that its group takes with
// the device's room, both in one turn or neither: nobody holds room of one tier
// while it waits for the other's, so that no two groups wait for each other.
// What came up that way stays in memory as a resident which may leave at any
// time. What leaves a device seeks room in memory as a group does, among the
// groups and by its age; where none will come it passes on to a resting tier,
// through staging, or beside the budget. Mover only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/motion/staging_room.h"
#include "runtime/mover/customers.h"
#include "runtime/residency/byte_room.h"
#include "runtime/residency/queue_error.h"
#include "runtime/residency/working_tiers.h"
#include "runtime/residency/write_back.h"
#include "runtime/tensor/tensor_life.h"
#include "tiers/memory/spill/spill_room.h"

namespace terrace {

// All outlive the passage.
struct MemoryPassageParts {
  Customers* customers = nullptr;  // number those that seek
  const WorkingTiers* working = nullptr;
  WriteBack* write_back = nullptr;
  StagingRoom* staging = nullptr;
  SpillRoom* spill = nullptr;
};

// What all of them take on a working tier.
int64_t BytesOf(absl::Span<Tensor* const> tensors);

class MemoryPassage {
 public:
  explicit MemoryPassage(const MemoryPassageParts& parts) : parts_(parts) {}

  // Of a group at that tier, whose tensors are in its wants' order: those that
  // must pass through memory. None, where it is a memory.
  std::vector<Tensor*> Passing(const Group& group,
                               absl::Span<Tensor* const> tensors,
                               TierId to) const;
  // ResourceExhausted, with the limit: whatever leaves, the group finds no room
  // on its device, or its passing tensors find none in memory.
  absl::Status Check(absl::Span<Tensor* const> tensors,
                     absl::Span<Tensor* const> passing,
                     const TierResidency& device) const;
  // Room for these in the order of the group's tensors.
  static ByteRoom::Rooms InOrder(absl::Span<Tensor* const> tensors,
                                 absl::Span<Tensor* const> passing,
                                 ByteRoom::Rooms rooms);
  // A range beside the budget for each, or for none.
  absl::Status FindBeyond(absl::Span<Tensor* const> passing,
                          ByteRoom::Rooms* rooms) const;

  // Those that leave devices and are older than number `before` come down as
  // far as there is room. Null: all of these do; else the first that waits.
  Tensor* LowerAll(ByteRoom& room, uint64_t before,
                   std::vector<QueueError>* errors) const;
  // No room will come for that one: it passes beside the budget, or stays.
  void LowerBeyond(Tensor& tensor, std::vector<QueueError>* errors) const;
  // Whether something is leaving a device, and does not wait for memory.
  bool AnyComesDown() const;

 private:
  // False: it waits.
  bool Lower(Lowering& lowering, ByteRoom& room,
             std::vector<QueueError>* errors) const;

  const MemoryPassageParts parts_;
};

}  // namespace terrace
