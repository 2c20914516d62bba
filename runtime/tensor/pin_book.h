// Which queue has which tensor pinned. A pin's token is all a customer gives
// back; what its end means for the tensor comes up as a value. Mover only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "runtime/tensor/image_keeper.h"
#include "runtime/tensor/tensor_life.h"
#include "terrace/pin.h"
#include "terrace/request.h"

namespace terrace {

// By which queues a tensor is pinned or held.
struct PinnedBy {
  bool own = false;     // by the queue in question
  bool others = false;  // by others, or for a group that will be ready
};

struct EndedPin {
  Tensor* tensor = nullptr;
  int64_t queue = -1;
  TierId tier = kNoTier;
  bool published = false;  // all other copies are stale
  bool dirty = false;      // the copy is newer than what is below
  bool drop = false;       // the copy is not needed, or it is undefined
  bool lost = false;       // and with it the tensor: no other copy is current
};

class PinBook {
 public:
  // `keeper`: told of each pin that is granted; it outlives the book.
  explicit PinBook(ImageKeeper* keeper = nullptr) : keeper_(keeper) {}

  // A hold of the tensor's copy on `tier` becomes a pin; returns its token,
  // which has the bits of `owner` beside those of a count.
  uint64_t Grant(Tensor& tensor, TierId tier, int64_t queue, Access access,
                 uint64_t owner = 0);
  // A pin as another runtime had it. False: its token is another's.
  bool Restore(Tensor& tensor, TierId tier, const PinImage& pin);
  // No count below that one is given from here on.
  void SkipTo(uint64_t next) { next_token_ = std::max(next_token_, next); }
  // InvalidArgument: no such token. The caller tells the keeper, once what it
  // means for the tensor has happened.
  absl::StatusOr<EndedPin> End(uint64_t token, PinEnd end);

  // Holds count as pins of others: their groups will have the tensor, and its
  // owner will let go of it.
  PinnedBy WhoPins(const Tensor& tensor, TierId tier, int64_t queue) const;
  // The same on all tiers together.
  PinnedBy WhoPins(const Tensor& tensor, int64_t queue) const;
  // Holds not counted.
  bool IsPinned(const Tensor& tensor) const {
    return holders_.contains(tensor.id.value);
  }
  size_t size() const { return pins_.size(); }
  bool empty() const { return pins_.empty(); }
  // Of the tensors pinned, the first `most` pins'.
  std::vector<std::string> Names(size_t most) const;

 private:
  struct Record {
    Tensor* tensor = nullptr;
    TierId tier = kNoTier;
    int64_t queue = -1;
    Access access = Access::kRead;
    bool was_dirty = false;  // before the pin
  };

  void Put(uint64_t token, Tensor& tensor, TierId tier, int64_t queue,
           Access access);

  ImageKeeper* const keeper_;
  absl::btree_map<uint64_t, Record> pins_;  // by token
  // By tensor, the queue and the tier of each pin.
  using Holders = absl::InlinedVector<std::pair<int64_t, TierId>, 2>;
  absl::flat_hash_map<int64_t, Holders> holders_;
  uint64_t next_token_ = 1;
};

}  // namespace terrace
