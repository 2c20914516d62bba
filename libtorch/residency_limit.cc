#include "libtorch/residency_limit.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <system_error>
#include <thread>

#include "base/mutex.h"
#include "base/threads/own_thread.h"

namespace terrace {
namespace {

constexpr int64_t kMappedBytes = 8 << 20;
constexpr absl::Duration kPeriod = absl::Milliseconds(5);

// How much of files this process has mapped and touched.
class MappedBytes {
 public:
  MappedBytes()
      : fd_(open("/proc/self/statm", O_RDONLY | O_CLOEXEC)),
        page_bytes_(sysconf(_SC_PAGESIZE)) {}
  ~MappedBytes() {
    if (fd_ >= 0) close(fd_);
  }
  MappedBytes(const MappedBytes&) = delete;
  MappedBytes& operator=(const MappedBytes&) = delete;

  // Where the kernel does not say it, more each time.
  int64_t Now() {
    char text[128] = {};
    int64_t pages = 0;
    if (fd_ < 0 || pread(fd_, text, sizeof(text) - 1, 0) <= 0 ||
        std::sscanf(text, "%*d %*d %ld", &pages) != 1) {
      return unknown_ += kMappedBytes;
    }
    return pages * page_bytes_;
  }

 private:
  const int fd_;
  const int64_t page_bytes_;
  int64_t unknown_ = 0;
};

}  // namespace

class ResidencyLimit::Watcher {
 public:
  explicit Watcher(absl::Span<std::byte> mapping)
      : mapping_(mapping),
        thread_(StartThread("terrace-mapped", [this] { Watch(); })) {}

  ~Watcher() {
    {
      MutexLock lock(mutex_);
      closed_ = true;
      changed_.SignalAll();
    }
    thread_.join();
  }

 private:
  void Watch() {
    MappedBytes mapped;
    int64_t least = mapped.Now();
    while (WaitedWhileOpen()) {
      const int64_t now = mapped.Now();
      if (now - least >= kMappedBytes) {
        // Of a shared mapping what was written there stays in the page cache.
        madvise(mapping_.data(), mapping_.size(), MADV_DONTNEED);
        least = mapped.Now();
      }
      least = std::min(least, now);
    }
  }

  bool WaitedWhileOpen() {
    MutexLock lock(mutex_);
    if (!closed_) changed_.WaitFor(mutex_, kPeriod);
    return !closed_;
  }

  const absl::Span<std::byte> mapping_;
  Mutex mutex_;
  CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

ResidencyLimit::ResidencyLimit(absl::Span<std::byte> mapping) {
  try {
    watcher_ = std::make_unique<Watcher>(mapping);
  } catch (const std::system_error&) {  // none to be had
  }
}

ResidencyLimit::~ResidencyLimit() {
  // In a forked child the thread is the parent's, and what waited at the fork
  // waits for ever: nothing there can be ended.
  if (!process_.IsCurrent()) static_cast<void>(watcher_.release());
}

}  // namespace terrace
