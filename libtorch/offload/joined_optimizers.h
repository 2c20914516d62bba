// The optimizers that joined one offloaded model, for the model's end: their
// updates are finished before the parameters go, and their state goes before
// the Runtime that has it.
//
// Thread-safe, except that no other thread uses, makes or destroys one of these
// optimizers while Flush or Close goes on.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace terrace {

class JoinedOptimizer {
 public:
  virtual ~JoinedOptimizer() = default;
  // Blocks until no update goes on. A failure is told once; a call after that
  // tries the updates once more. Returns DeadlineExceeded when the deadline
  // comes first.
  virtual absl::Status Flush(absl::Time deadline) = 0;
  // Ends the optimizer's state, and gives back what the optimizer has of the
  // model. Returns an error when a step failed part-way and was not finished.
  virtual absl::Status Close() = 0;
};

class JoinedOptimizers {
 public:
  // The optimizer is one of these until Remove or Close.
  void Add(JoinedOptimizer& optimizer);
  // Does nothing when the optimizer is not here any more.
  void Remove(JoinedOptimizer& optimizer);

  // Both call each optimizer, and return the first error, which tells of the
  // others.
  absl::Status Flush(absl::Time deadline);
  absl::Status Close();

 private:
  Mutex mutex_;
  std::vector<JoinedOptimizer*> optimizers_ ABSL_GUARDED_BY(mutex_);
};

// Returns the first error of two, which tells of the other.
absl::Status Both(const absl::Status& first, const absl::Status& second);

}  // namespace terrace
