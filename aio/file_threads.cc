#include "aio/file_threads.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <system_error>

#include "base/page_cache.h"
#include "base/threads/own_thread.h"

namespace terrace {

void ThreadResults::Add(const IoResult &result) {
  MutexLock lock(mutex_);
  done_.push_back(result);
  changed_.Signal();
}

int ThreadResults::Take(absl::Span<IoResult> results) {
  MutexLock lock(mutex_);
  const size_t n = std::min(results.size(), done_.size());
  std::copy_n(done_.begin(), n, results.begin());
  done_.erase(done_.begin(), done_.begin() + static_cast<ptrdiff_t>(n));
  return static_cast<int>(n);
}

void ThreadResults::Wait(absl::Time deadline) {
  MutexLock lock(mutex_);
  while (done_.empty() && !woken_) {
    const absl::Duration left = deadline - SystemClock().Now();
    if (left <= absl::ZeroDuration()) break;
    changed_.WaitFor(mutex_, left);
  }
  woken_ = false;
}

void ThreadResults::Wake() {
  MutexLock lock(mutex_);
  woken_ = true;
  changed_.Signal();
}

FileThreads::~FileThreads() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    queue_.clear();
    changed_.SignalAll();
  }
  for (std::thread &thread : threads_) thread.join();
}

int FileThreads::Start() {
  threads_.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    try {
      threads_.push_back(StartThread("terrace-io", [this] { Work(); }));
    } catch (const std::system_error &) {
      break;
    }
  }
  return static_cast<int>(threads_.size());
}

void FileThreads::Open(int fd) {
  fd_ = fd;
  leaves_pages_ = LeavesPages(fd);
  if (leaves_pages_) ReadOnlyWhatIsAsked(fd);
}

bool FileThreads::Push(const IoRequest &request) {
  MutexLock lock(mutex_);
  const int pending = static_cast<int>(queue_.size()) + begun_;
  if (pending >= IoEngine::kMostSlots) return false;
  queue_.push_back(request);
  changed_.Signal();
  return true;
}

bool FileThreads::Withdraw(uint64_t tag) {
  MutexLock lock(mutex_);
  return std::erase_if(queue_, [tag](const IoRequest &request) {
           return request.tag == tag;
         }) > 0;
}

void FileThreads::Work() {
  MutexLock lock(mutex_);
  while (true) {
    while (queue_.empty() && !stopping_) changed_.Wait(mutex_);
    if (stopping_) return;
    const IoRequest request = queue_.front();
    queue_.pop_front();
    ++begun_;
    mutex_.Unlock();
    results_.Add({request.tag, Move(request)});
    mutex_.Lock();
    --begun_;
  }
}

// What is beyond the system's limit for one call, 2 GiB - 4 KiB, comes back
// short like any other remainder.
int64_t FileThreads::Move(const IoRequest &request) const {
  const auto size = static_cast<size_t>(request.size_bytes);
  const bool is_read = request.direction == IoDirection::kRead;
  const ssize_t moved = is_read
                            ? pread(fd_, request.data, size, request.offset)
                            : pwrite(fd_, request.data, size, request.offset);
  if (moved < 0) return -errno;
  if (moved == 0 || !leaves_pages_) return moved;
  if (is_read) {
    DropRead(fd_, request.offset, moved);
    return moved;
  }
  const int error = DropWritten(fd_, request.offset, moved);
  return error == 0 ? moved : -error;
}

}  // namespace terrace
