// The bytes that a budget in bytes has left beside a model that is all in
// memory. The state of each optimizer that joins such a model takes its part of
// them. Beside other models the Runtime's growth counts the optimizers' parts
// (OffloadPlace).
//
// Thread-safe.
#pragma once

#include <cstdint>

#include "base/mutex.h"

namespace terrace {

class BesideBudget {
 public:
  explicit BesideBudget(int64_t bytes);

  int64_t left_bytes() const;
  // Returns false when fewer bytes are left, and changes nothing.
  bool Take(int64_t bytes);
  void GiveBack(int64_t bytes);

 private:
  mutable Mutex mutex_;
  int64_t left_bytes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
