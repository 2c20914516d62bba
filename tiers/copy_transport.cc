#include "tiers/copy_transport.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace terrace {
namespace {

constexpr int64_t kTasksPerWorker = 2;  // one runs, one is ready to

}  // namespace

// The queue behind a lock. A task is not a piece but the leave to run one, so
// that a demand need not wait for what was queued before it; a task that finds
// none does nothing.
class CopyTransport::Box : public std::enable_shared_from_this<Box> {
 public:
  Box(const std::vector<CopyEnd>& ends, Executor& executor, Clock& clock,
      std::function<void()> wake)
      : executor_(executor),
        clock_(clock),
        wake_(std::move(wake)),
        most_tasks_(kTasksPerWorker * executor.parallelism()),
        queue_(ends) {}

  void Begin(const Move& move) {
    int64_t tasks = 0;
    {
      MutexLock lock(mutex_);
      queue_.Begin(move);
      tasks = ClaimTasks();
    }
    QueueTasks(tasks);
  }

  void Cancel(Edge edge, uint64_t tag) {
    bool ended = false;
    {
      MutexLock lock(mutex_);
      const bool had_ended = queue_.has_ended();
      queue_.Cancel(edge, tag);
      ended = !had_ended && queue_.has_ended();
    }
    if (ended) Wake();
  }

  void Promote(Edge edge, uint64_t tag, IoClass io_class) {
    MutexLock lock(mutex_);
    queue_.Promote(edge, tag, io_class);
  }

  void Poll(std::vector<Moved>* moved) {
    MutexLock lock(mutex_);
    queue_.TakeEnded(moved);
  }

  int64_t pending() const {
    MutexLock lock(mutex_);
    return queue_.pending();
  }

  IoPathStats stats(TierId tier) const {
    MutexLock lock(mutex_);
    IoPathStats stats = queue_.stats(tier, clock_.Now());
    stats.in_flight_limit_bytes = most_tasks_ * CopyQueue::kPieceBytes;
    return stats;
  }

  void Shut() {
    {
      MutexLock lock(mutex_);
      queue_.DropAll();
    }
    MutexLock lock(wake_mutex_);
    shut_ = true;
  }

 private:
  // As many as pieces wait for and as there may be.
  int64_t ClaimTasks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int64_t tasks = std::clamp<int64_t>(
        queue_.waiting_pieces() - queued_tasks_, 0, most_tasks_ - tasks_);
    tasks_ += tasks;
    queued_tasks_ += tasks;
    return tasks;
  }

  void QueueTasks(int64_t tasks) {
    for (int64_t i = 0; i < tasks; ++i) {
      executor_.Run([box = shared_from_this()] { box->RunTask(); },
                    Lane::kMotion);
    }
  }

  void RunTask() {
    std::optional<CopyPiece> piece;
    {
      MutexLock lock(mutex_);
      --queued_tasks_;
      // Times are read under the lock, so that they are in the order of what
      // they are of.
      piece = queue_.Next(clock_.Now());
    }
    absl::Status status;
    if (piece) status = piece->Copy();
    bool ended = false;
    int64_t tasks = 0;
    {
      MutexLock lock(mutex_);
      const bool had_ended = queue_.has_ended();
      if (piece) queue_.Landed(*piece, status, clock_.Now());
      ended = !had_ended && queue_.has_ended();
      --tasks_;
      tasks = ClaimTasks();
    }
    QueueTasks(tasks);
    if (ended) Wake();
  }

  void Wake() {
    MutexLock lock(wake_mutex_);
    if (!shut_) wake_();
  }

  Executor& executor_;
  Clock& clock_;
  const std::function<void()> wake_;
  const int64_t most_tasks_;
  mutable Mutex mutex_;
  CopyQueue queue_ ABSL_GUARDED_BY(mutex_);
  int64_t tasks_ ABSL_GUARDED_BY(mutex_) = 0;         // queued or running
  int64_t queued_tasks_ ABSL_GUARDED_BY(mutex_) = 0;  // of these
  // Held while wake runs, so that none does after Shut.
  Mutex wake_mutex_;
  bool shut_ ABSL_GUARDED_BY(wake_mutex_) = false;
};

CopyTransport::CopyTransport(const std::vector<CopyEnd>& ends,
                             Executor& executor, Clock& clock,
                             std::function<void()> wake)
    : box_(std::make_shared<Box>(ends, executor, clock, std::move(wake))) {}

CopyTransport::~CopyTransport() { box_->Shut(); }

void CopyTransport::Begin(const Move& move) { box_->Begin(move); }

void CopyTransport::Cancel(Edge edge, uint64_t tag) { box_->Cancel(edge, tag); }

void CopyTransport::Promote(Edge edge, uint64_t tag, IoClass io_class) {
  box_->Promote(edge, tag, io_class);
}

void CopyTransport::Poll(std::vector<Moved>* moved) { box_->Poll(moved); }

int64_t CopyTransport::pending() const { return box_->pending(); }

IoPathStats CopyTransport::stats(TierId tier) const {
  return box_->stats(tier);
}

}  // namespace terrace
