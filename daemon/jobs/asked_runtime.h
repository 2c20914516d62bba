// What a thread that must not wait asks the runtime of a session, and the
// newest of what that has answered. The answers come by and by, as RuntimeProbe
// has it.
//
// It belongs to one thread.
#pragma once

#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "daemon/jobs/job_session.h"
#include "daemon/jobs/runtime_probe.h"
#include "terrace/stats.h"

namespace terrace {

class AskedRuntime {
 public:
  // `session` outlives what is asked; the boxes are those that its runtime
  // answers into.
  AskedRuntime(JobSession* session, std::shared_ptr<AnswerBoxes> boxes)
      : session_(session), boxes_(std::move(boxes)) {}

  void AskStats(absl::Time now) {
    is_unanswered_ = true;
    asked_stats_ = now;
    session_->AskStats();
  }
  void TakeStats() {
    const std::unique_ptr<Stats> stats = boxes_->stats.Take();
    if (stats == nullptr) return;
    newest_ = std::move(*stats);
    is_unanswered_ = false;
  }
  const Stats& newest() const { return newest_; }
  // It was asked for Stats, and has not answered.
  bool is_unanswered() const { return is_unanswered_; }
  absl::Time asked_stats() const { return asked_stats_; }

  // For tensors behind that one. Null: the page has not come.
  void AskPage(TensorId after) { session_->AskPage(after); }
  std::unique_ptr<TensorPage> TakePage() { return boxes_->pages.Take(); }
  // Null: it is not over.
  void Evict(const EvictionOrder& order) { session_->Evict(order); }
  std::unique_ptr<Evicted> TakeEvicted() { return boxes_->evicted.Take(); }
  void Lend(const LendOrder& order) { session_->Lend(order); }
  std::unique_ptr<Lent> TakeLent() { return boxes_->lent.Take(); }

 private:
  JobSession* session_;
  std::shared_ptr<AnswerBoxes> boxes_;
  Stats newest_;
  bool is_unanswered_ = false;
  absl::Time asked_stats_ = absl::InfinitePast();
};

}  // namespace terrace
