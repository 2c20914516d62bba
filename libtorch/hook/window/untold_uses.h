// UntoldUses has the latest uses of a window's tensors, in their order, that
// the Runtime has not been told of. They are told many at a time, as a use
// costs an operation little; each lane's by themselves.
//
// The class is thread-safe. A use takes one atomic addition, and waits for
// nobody: a thread that is interrupted in the midst of it tells its use with
// later ones, or not at all. Uses say what is expected, and nothing more.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/threads/lock_order.h"
#include "terrace/tensor.h"

namespace terrace {

// The lanes of a window's queue (terrace/byte_queue.h): the model's operations,
// and what the library copies, for updates above all, which may run beside
// them.
enum class UseLane : uint8_t { kOperations, kCopies };
inline constexpr size_t kUseLanes = 2;

class UntoldUses {
 public:
  // Adds a use of a tensor with so many bytes; several in a row of a lane are
  // one. Returns true when it is time to tell what there is: that is many uses
  // of a lane, or `most_bytes` of its tensors.
  bool Add(UseLane lane, TensorId tensor, int64_t size_bytes,
           int64_t most_bytes);
  // Hands all of them over, by lane.
  using Uses = std::array<std::vector<TensorId>, kUseLanes>;
  Uses Take();

 private:
  // Twice as many as are many: others add while one tells them.
  static constexpr size_t kSlots = 2048;
  // The tensors' numbers and one, as an empty slot has 0.
  using Slots = std::array<std::atomic<int64_t>, kSlots>;
  // One half takes uses while those of the other are handed over.
  struct Lane {
    std::atomic<uint64_t> state = 0;  // bytes, half and count of uses
    std::array<Slots, 2> halves = {};
  };

  OrderedMutex mutex_{LockRank::kUntoldUses};  // held while they are taken
  std::array<Lane, kUseLanes> lanes_;
};

}  // namespace terrace
