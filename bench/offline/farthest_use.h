// What a runtime that knew all uses would move: operations in order, each with
// its operands in memory together, and between them the tensor leaves that is
// used farthest in the future (Belady 1966, "A study of replacement algorithms
// for a virtual-storage computer"). With tensors of one size that are only read
// no order moves less; with sizes or writes it is the rule, not the least.
//
// Values; no I/O.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace terrace::bench {

struct OperandUse {
  std::string tensor;
  int64_t bytes = 0;  // that it takes in memory, headers included
  bool writes = false;
  bool makes = false;  // every byte: nothing is read for it
  bool ends = false;   // it is not needed any more: nothing is written for it
  // It ends wherever it is, and nothing is read, nor room made: a program that
  // drops a tensor uses none of it.
  bool drops = false;
};
using Operation = std::vector<OperandUse>;

struct OfflineTraffic {
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  // Of operands that exceed the budget together, at most at a time.
  int64_t beyond_bytes = 0;
  friend bool operator==(const OfflineTraffic&,
                         const OfflineTraffic&) = default;
};

// One operation a line: "name:bytes", with 'w', 'n', 'e' and 'd' behind the
// bytes for one that writes, makes, ends and drops it. InvalidArgument, with
// the line: a word that is none, or a tensor of another size than before.
absl::StatusOr<std::vector<Operation>> ParseTrace(absl::string_view text);

// Of `steps` times the trace, all of them but the first `warm`. What is below
// at the beginning is current; what memory has at the end stays there.
OfflineTraffic FarthestNextUse(absl::Span<const Operation> trace,
                               int64_t budget_bytes, int steps = 1,
                               int warm = 0);

}  // namespace terrace::bench
