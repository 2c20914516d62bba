// A caching allocator's blocks, in a range of addresses: a block is of one home
// stream's memory, and what the home stream frees is the first that it is given
// again. Uses by other streams that were recorded are waited for before. What
// one stream has freed is no other's until it is released.
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "tests/support/accelerator/access_ledger.h"
#include "tests/support/accelerator/task_queues.h"

namespace terrace {

struct BlockPoolStats {
  int64_t allocated_bytes = 0;  // of blocks, and of those that are waited for
  int64_t peak_bytes = 0;
  int64_t blocks = 0;
  int64_t cached_bytes = 0;  // free, of home streams
};

class BlockPool {
 public:
  // A freed block's last uses on a stream that is not its home.
  struct Pending {
    TaskMark until;
    VectorClock done;
  };
  using MarkOf = std::function<Pending(AcceleratorStream)>;

  BlockPool(AddressRange range, size_t granule, size_t limit_bytes);

  // Bytes are rounded up to granules. Nothing: what is allocated and what other
  // streams have freed leaves no room within the limit.
  std::optional<AddressRange> Allocate(size_t bytes, AcceleratorStream home);
  // Of the address's block; nothing: there is no such block.
  void RecordUse(uintptr_t address, AcceleratorStream stream);
  // `mark_of` is asked for each recorded stream.
  void Free(uintptr_t address, const MarkOf& mark_of);
  struct Returned {
    AddressRange range;
    VectorClock done;
  };
  // Gives back what has waited long enough, and says so.
  std::vector<Returned> Collect(const std::function<bool(TaskMark)>& is_over);
  // What is free is everybody's from here on; what that is.
  std::vector<AddressRange> Release();

  void set_limit_bytes(size_t bytes) { limit_bytes_ = bytes; }
  size_t limit_bytes() const { return limit_bytes_; }
  std::optional<AddressRange> BlockOf(uintptr_t address) const;
  BlockPoolStats stats() const;
  void ResetPeak() { peak_bytes_ = allocated_bytes_; }

 private:
  static constexpr AcceleratorStream kNobody = -1;

  struct Block {
    AddressRange range;
    AcceleratorStream home = 0;
    std::set<AcceleratorStream> recorded;
  };
  struct FreeRange {
    uintptr_t end = 0;
    AcceleratorStream home = kNobody;
    int64_t freed = 0;  // the later, the greater
  };
  struct Waiting {
    Block block;
    std::vector<Pending> uses;
  };
  using FreeRanges = std::map<uintptr_t, FreeRange>;

  FreeRanges::iterator FindFree(size_t bytes, AcceleratorStream home);
  void GiveBack(AddressRange range, AcceleratorStream home);
  void Merge(FreeRanges::iterator range);

  const size_t granule_;
  size_t limit_bytes_;
  std::map<uintptr_t, Block> blocks_;
  FreeRanges free_;
  std::vector<Waiting> waiting_;
  int64_t allocated_bytes_ = 0;
  int64_t cached_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  int64_t frees_ = 0;
};

}  // namespace terrace
