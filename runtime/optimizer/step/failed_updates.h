// Chunks whose copies from or to a device failed, on their way from the tasks
// that found out to the thread that makes the step.
//
// Thread-safe.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "runtime/base/mutex.h"
#include "runtime/optimizer/step/chunk_update.h"

namespace terrace {

struct FailedUpdate {
  int chunk;
  std::shared_ptr<ChunkUpdate> update;  // shared with the tasks of its ranges
};

class FailedUpdates {
 public:
  void Add(FailedUpdate failed) {
    MutexLock lock(mutex_);
    failed_.push_back(std::move(failed));
  }
  // All since the last call, in their order.
  std::vector<FailedUpdate> Take() {
    std::vector<FailedUpdate> failed;
    MutexLock lock(mutex_);
    failed.swap(failed_);
    return failed;
  }

 private:
  Mutex mutex_;
  std::vector<FailedUpdate> failed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
