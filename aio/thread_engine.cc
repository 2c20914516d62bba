// A pread/pwrite pool for kernels and containers that give no ring. Its threads
// also see buffered transfers out of the page cache; which write of a file is
// told that the device lost something: runtime/base/page_cache.h.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aio/make_engine.h"
#include "runtime/base/mutex.h"
#include "runtime/base/page_cache.h"
#include "runtime/base/threads/own_thread.h"

namespace terrace {
namespace {

// Measured: as many as saturate one disk; more only take CPU.
constexpr int kThreads = 4;
constexpr size_t kMaxPending = 512;

class ThreadEngine final : public IoEngine {
 public:
  explicit ThreadEngine(const std::string& reason) : reason_(reason) {
    threads_.reserve(kThreads);
    for (int i = 0; i < kThreads; ++i) {
      try {
        threads_.push_back(StartThread("terrace-io", [this] { Work(); }));
      } catch (const std::system_error&) {
        return;  // fewer do as well, but slower
      }
    }
  }

  // Drops what no thread has begun, waits for what one has.
  ~ThreadEngine() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      queue_.clear();
      work_changed_.SignalAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  absl::StatusOr<int> AddFile(int fd) override {
    files_.push_back({fd, LeavesPages(fd)});
    if (files_.back().leaves_pages) ReadOnlyWhatIsAsked(fd);
    return static_cast<int>(files_.size()) - 1;
  }
  void RegisterArena(absl::Span<std::byte> /*arena*/) override {}

  int Submit(absl::Span<const IoRequest> requests) override {
    MutexLock lock(mutex_);
    const int taken =
        static_cast<int>(std::min(requests.size(), kMaxPending - pending_));
    for (const IoRequest& request : requests.first(taken)) {
      const bool is_known =
          request.file >= 0 && request.file < static_cast<int>(files_.size());
      queue_.push_back({request, is_known ? files_[request.file] : File()});
      work_changed_.Signal();
    }
    pending_ += taken;
    return taken;
  }

  int Poll(absl::Span<IoResult> results) override {
    MutexLock lock(mutex_);
    const size_t n = std::min(results.size(), done_.size());
    std::copy_n(done_.begin(), n, results.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<ptrdiff_t>(n));
    pending_ -= n;
    return static_cast<int>(n);
  }

  void Wait(absl::Time deadline) override {
    MutexLock lock(mutex_);
    while (done_.empty() && !woken_) {
      const absl::Duration left = deadline - SystemClock().Now();
      if (left <= absl::ZeroDuration()) break;
      done_changed_.WaitFor(mutex_, left);
    }
    woken_ = false;
  }
  void Wake() override {
    MutexLock lock(mutex_);
    woken_ = true;
    done_changed_.Signal();
  }

  bool has_threads() const { return !threads_.empty(); }

  EngineInfo info() const override {
    return {"threads", absl::StrCat(threads_.size(), " threads, ", reason_)};
  }

 private:
  struct File {
    int fd = -1;
    bool leaves_pages = false;
  };
  struct Job {
    IoRequest request;
    File file;
  };

  void Work() {
    MutexLock lock(mutex_);
    while (true) {
      while (queue_.empty() && !stopping_) work_changed_.Wait(mutex_);
      if (stopping_) return;
      const Job job = queue_.front();
      queue_.pop_front();
      mutex_.Unlock();
      const int64_t result = Move(job);
      mutex_.Lock();
      done_.push_back({job.request.tag, result});
      done_changed_.Signal();
    }
  }

  // What is beyond the system's limit for one call, 2 GiB - 4 KiB, comes back
  // short like any other remainder.
  static int64_t Move(const Job& job) {
    const IoRequest& request = job.request;
    const auto size = static_cast<size_t>(request.size_bytes);
    const bool is_read = request.direction == IoDirection::kRead;
    const ssize_t moved =
        is_read ? pread(job.file.fd, request.data, size, request.offset)
                : pwrite(job.file.fd, request.data, size, request.offset);
    if (moved < 0) return -errno;
    if (moved == 0 || !job.file.leaves_pages) return moved;
    if (is_read) {
      DropRead(job.file.fd, request.offset, moved);
      return moved;
    }
    const int error = DropWritten(job.file.fd, request.offset, moved);
    return error == 0 ? moved : -error;
  }

  const std::string reason_;
  std::vector<File> files_;  // the user's thread only

  Mutex mutex_;
  CondVar work_changed_;
  CondVar done_changed_;
  std::deque<Job> queue_ ABSL_GUARDED_BY(mutex_);
  std::deque<IoResult> done_ ABSL_GUARDED_BY(mutex_);
  size_t pending_ ABSL_GUARDED_BY(mutex_) = 0;  // taken, not yet polled
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace

std::unique_ptr<IoEngine> MakeThreadEngine(const std::string& reason) {
  auto engine = std::make_unique<ThreadEngine>(reason);
  if (!engine->has_threads()) return nullptr;
  return engine;
}

}  // namespace terrace
