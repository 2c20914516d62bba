// The optimizers that joined one offloaded model, for the model's end: their
// updates are finished before the parameters go, and their state goes before
// the Runtime that has it.
//
// Thread-safe; but while Finish or Close goes on no other thread uses, makes or
// destroys one of these optimizers.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace terrace {

class JoinedOptimizer {
 public:
  virtual ~JoinedOptimizer() = default;
  // Blocks until no update goes on. What failed is told once; again, it is
  // tried once more. DeadlineExceeded: the deadline came first.
  virtual absl::Status Finish(absl::Time deadline) = 0;
  // Its state is gone, and what it has of the model given back. A step that
  // failed part-way, and was not finished, is told.
  virtual absl::Status Close() = 0;
};

class JoinedOptimizers {
 public:
  // Until Remove, or Close.
  void Add(JoinedOptimizer& optimizer);
  // Nothing where it is not there any more.
  void Remove(JoinedOptimizer& optimizer);

  // Of each; the first error, which tells of the others.
  absl::Status Finish(absl::Time deadline);
  absl::Status Close();

 private:
  Mutex mutex_;
  std::vector<JoinedOptimizer*> optimizers_ ABSL_GUARDED_BY(mutex_);
};

// The first error of two, which tells of the other.
absl::Status Both(const absl::Status& first, const absl::Status& second);

}  // namespace terrace
