// The chunks of a step that pass through staging slots, while copies are under
// way: on their way in, until they have arrived; and after the update, on their
// way out.
//
//   updates.AddArriving({chunk, update});
//   for (auto& [update, arrived] : updates.TakeArrived()) ... run its ranges
//   ... updates.AddReturning(update);          // by its last range
//   for (auto& [update, returned] : updates.TakeReturned()) ...
//
// A chunk whose parameters could not be given back has been updated all the
// same: it is kept, and another attempt at the step gives them back.
//
// A thread may await a parameter's chunks, to be told as soon as they are
// updated: copies of another chunk, once begun, may keep the customer's thread
// as long as a disk takes.
//
// Copies are polled: what is taken has ended, and nothing waits for the rest.
// One thread at a time (the customer's), but for AddReturning.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "optimizer/step/chunk_update.h"

namespace terrace {

struct StagedUpdate {
  int chunk = 0;
  std::shared_ptr<ChunkUpdate> update;  // shared with the tasks of its ranges
};

// How its copies in one direction ended.
struct EndedCopies {
  StagedUpdate staged;
  absl::Status status;
};

class StagedUpdates {
 public:
  void AddArriving(StagedUpdate staged) {
    under_way_.push_back(staged.chunk);
    arriving_.push_back(std::move(staged));
  }
  // Thread-safe.
  void AddReturning(StagedUpdate staged) {
    MutexLock lock(mutex_);
    computed_.push_back(std::move(staged));
  }

  // Those that have ended since the last call, in their order.
  std::vector<EndedCopies> TakeArrived();
  std::vector<EndedCopies> TakeReturned();

  // Without its slot. False: it cannot be kept.
  bool Keep(StagedUpdate staged);
  // Those that are kept begin to return once more; how many.
  int ReturnAgain(absl::Span<const ParameterData> parameters);
  int kept() const { return static_cast<int>(kept_.size()); }
  void GiveUpKept() { kept_.clear(); }

  // The chunks of a parameter that are not updated yet are awaited.
  void Await(std::vector<int> chunks) {
    if (!chunks.empty()) awaited_.push_back(std::move(chunks));
  }
  void ForgetAwaited() {
    awaited_.clear();
    under_way_.clear();
  }
  // The chunk is updated and copied back, or was lost. Whether it was the last
  // one that a parameter needs.
  bool End(int chunk);
  // From AddArriving to End.
  bool IsUnderWay(int chunk) const {
    return std::find(under_way_.begin(), under_way_.end(), chunk) !=
           under_way_.end();
  }
  // All that some parameter still needs is under way: nothing else begins.
  bool HoldsBack() const;

  // Copies are under way, as far as was taken.
  bool copying() const {
    if (!arriving_.empty() || !returning_.empty()) return true;
    MutexLock lock(mutex_);
    return !computed_.empty();
  }

 private:
  std::vector<StagedUpdate> arriving_;
  std::vector<StagedUpdate> returning_;
  std::vector<StagedUpdate> kept_;
  std::vector<std::vector<int>> awaited_;  // by parameter
  std::vector<int> under_way_;
  mutable Mutex mutex_;
  std::vector<StagedUpdate> computed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
