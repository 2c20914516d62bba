// A UseTrace knows which tensors a step uses, in which order. The next step is
// expected to use the same tensors, and its uses tell where in that order it
// is. So each tensor has a next use, which says what to bring next and what to
// evict.
//
// A step that differs is followed as far as it agrees: tensors that the last
// step did not use are passed over, and so are tensors that this step leaves
// out, up to 64 uses in a row. Uses that go on without an end, for 65,536 more
// than four times the last step's, are no step: nothing is expected then until
// the next step. One thread at a time uses a UseTrace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace terrace {

class UseTrace {
 public:
  static constexpr int64_t kUnknownUse = INT64_MAX;

  // Begins a step, which is expected to do what was noted since the last
  // beginning.
  void BeginStep();
  // Notes that the tensor is used now; several uses in a row count once.
  void Note(int64_t tensor);

  // Whether a step has been seen.
  bool known() const { return !last_.empty(); }
  // Returns how many uses of other tensors come before the next use of this
  // one, where the next step begins in the same way as this one. Returns
  // kUnknownUse when the trace does not know the tensor.
  int64_t NextUse(int64_t tensor) const;
  // Returns the tensor that is used `ahead` uses after the next one, or -1 when
  // nothing is known.
  int64_t At(size_t ahead) const;
  size_t size() const { return last_.size(); }
  size_t position() const { return position_; }  // in the last step

 private:
  static constexpr int64_t kMostPassed = 64;
  static constexpr size_t kMostUses = 64 << 10;

  std::vector<int64_t> last_;
  std::vector<int64_t> current_;
  absl::flat_hash_map<int64_t, std::vector<size_t>> places_;  // in last_
  size_t position_ = 0;  // of the next use, in last_
  bool is_endless_ = false;
};

}  // namespace terrace
