// Which tensors a step uses, in which order: the next step is expected to use
// the same, and what it does tells where in that order it is. So each tensor
// has a next use, which says what to bring next and what to evict.
//
// A step that differs is followed as far as it agrees: what the last one did
// not use is passed over, and so is what this one leaves out, up to 64 uses in
// a row. One that does not end, of many thousand uses and four times the last,
// is none: nothing is expected then until the next. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace terrace {

class UseTrace {
 public:
  static constexpr int64_t kUnknownUse = INT64_MAX;

  // What was noted since the last beginning is what this step is expected to
  // do.
  void BeginStep();
  // Used now; several times in a row count once.
  void Note(int64_t tensor);

  // Whether a step has been seen.
  bool known() const { return !last_.empty(); }
  // Uses of other tensors from now until this one's; over the end of the step
  // the next begins in the same way.
  int64_t NextUse(int64_t tensor) const;
  // What is used next, `ahead` uses after the next one; -1: nothing is known.
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
