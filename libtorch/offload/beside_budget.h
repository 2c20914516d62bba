// What a budget in bytes has beside a model that is all in memory: the state of
// each optimizer that joins takes its part of it. The Runtime's growth counts
// the others' (OffloadPlace).
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
  // False, and nothing changes: there are not so many.
  bool Take(int64_t bytes);
  void GiveBack(int64_t bytes);

 private:
  mutable Mutex mutex_;
  int64_t left_bytes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
