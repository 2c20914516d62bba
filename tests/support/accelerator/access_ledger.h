// Who last wrote to each byte of a range of addresses and who has read it
// since, and so which access nothing orders after those before it. Bytes of one
// history are one cell; an access divides cells at its ends, and a write makes
// one of those that it covers.
//
// Memory that is given to a new owner keeps its history: what the new owner
// writes comes after all that was done with the memory before, or is a
// conflict.
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/accelerator/vector_clock.h"

namespace terrace {

struct AddressRange {
  uintptr_t begin = 0;
  uintptr_t end = 0;

  bool is_empty() const { return end <= begin; }
};

// Somebody's use of bytes: a task of a stream, by its number.
struct StreamAccess {
  AcceleratorStream stream = 0;
  int64_t time = 0;
  std::string by;  // the operation, for reports
};

struct Conflict {
  enum class Kind : uint8_t {
    kUnordered,   // with an access to the same block
    kReuse,       // with one to the block that had the memory before
    kAllocation,  // the home stream may still have the memory
  };
  Kind kind = Kind::kUnordered;
  StreamAccess other;
  bool is_other_write = false;
};

class AccessLedger {
 public:
  // The bytes become a block: whoever uses it comes after its home stream's
  // task of that number, the last before the allocation.
  void Allocate(AddressRange bytes, AcceleratorStream home, int64_t time);
  // Notes the access, and says what is not over for whoever knows `done`.
  std::optional<Conflict> Touch(AddressRange bytes, const StreamAccess& access,
                                bool is_write, const VectorClock& done);
  // Says it alone: the access leaves no trace, as the CPU's.
  std::optional<Conflict> Find(AddressRange bytes, bool is_write,
                               const VectorClock& done);
  // The bytes' next owner comes after what `done` covers.
  void Settle(AddressRange bytes, const VectorClock& done);

 private:
  struct Use {
    StreamAccess access;
    int64_t life = 0;
  };
  struct Cell {
    uintptr_t end = 0;
    int64_t life = 0;  // of the block that has the bytes
    std::optional<StreamAccess> allocated;
    std::optional<Use> writer;
    std::vector<Use> readers;
  };
  using Cells = std::map<uintptr_t, Cell>;

  static std::optional<Conflict> FindIn(const Cell& cell, bool is_write,
                                        const VectorClock& done);
  void SplitAt(uintptr_t address);
  // Fills what no cell has; the first of the cells that make up the range.
  Cells::iterator Cover(AddressRange bytes);

  Cells cells_;
  int64_t lives_ = 0;
};

}  // namespace terrace
