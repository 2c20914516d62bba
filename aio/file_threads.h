// The threads of one file of the thread engine, and its queue: what hangs there
// holds up no other file.
//
// Thread-safe but for Start, which comes first.
#pragma once

#include <cstdint>
#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "aio/engine.h"
#include "base/mutex.h"

namespace terrace {

// What the threads of all files have done, until it is polled.
class ThreadResults {
 public:
  void Add(const IoResult& result);
  int Take(absl::Span<IoResult> results);
  // As IoEngine's.
  void Wait(absl::Time deadline);
  void Wake();

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<IoResult> done_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
};

class FileThreads {
 public:
  // Measured: as many as saturate one disk; more only take CPU.
  static constexpr int kThreads = 4;

  // `results` outlives them.
  explicit FileThreads(ThreadResults& results) : results_(results) {}
  // Drops what no thread has begun, waits for what one has.
  ~FileThreads();
  FileThreads(const FileThreads&) = delete;
  FileThreads& operator=(const FileThreads&) = delete;

  // How many there are; 0: the system gives none. Fewer than kThreads do as
  // well, but slower.
  int Start();
  // Before the first request. The descriptor stays open.
  void Open(int fd);

  // False: it has as many as it may have at a time.
  bool Push(const IoRequest& request);
  // False: a thread has begun with it, or it is not here.
  bool Withdraw(uint64_t tag);

 private:
  void Work();
  int64_t Move(const IoRequest& request) const;

  ThreadResults& results_;
  int fd_ = -1;
  bool leaves_pages_ = false;

  Mutex mutex_;
  CondVar changed_;
  std::deque<IoRequest> queue_ ABSL_GUARDED_BY(mutex_);
  int begun_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace terrace
