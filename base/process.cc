#include "base/process.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#include <array>
#include <cerrno>
#include <ctime>
#include <utility>

namespace terrace {
namespace {

constexpr int kFree = 0;
// A busy machine keeps a thread waiting for a tenth of that.
constexpr int64_t kLongestPauseSeconds = 1;

// Of the list, which grows and never shrinks: 256 fill a KiB.
struct Block {
  std::array<std::atomic<int>, 256> slots = {};  // a descriptor and 1
  std::atomic<Block*> next = nullptr;
};

constinit Block list;

// Shared by ForkPauses, exclusive while a child is made. Those that wait to
// fork come first: no stream of others holds them up.
constexpr pthread_rwlock_t kOpenGate =
    PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
pthread_rwlock_t gate = kOpenGate;
thread_local bool has_gate = false;  // which is forking

std::atomic<int>* Enter(int fd) {
  Block* block = &list;
  while (true) {
    for (std::atomic<int>& slot : block->slots) {
      int expected = kFree;
      if (slot.compare_exchange_strong(expected, fd + 1)) return &slot;
    }
    Block* next = block->next.load();
    if (next == nullptr) {
      auto* const made = new Block;
      if (block->next.compare_exchange_strong(next, made)) {
        next = made;
      } else {
        delete made;  // another thread was faster
      }
    }
    block = next;
  }
}

void BeforeFork() {
  timespec end = {};
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += kLongestPauseSeconds;
  has_gate = pthread_rwlock_timedwrlock(&gate, &end) == 0;
}

void InParent() {
  if (has_gate) pthread_rwlock_unlock(&gate);
  has_gate = false;
}

}  // namespace

std::atomic<uint64_t> Process::current_ = 1;

struct ForkHandlers {
  static void InChild() {
    const int error = errno;
#if defined(__SANITIZE_THREAD__)
    if (has_gate) {  // which the sanitiser would hold against this thread
      __tsan_mutex_pre_unlock(&gate, 0);
      __tsan_mutex_post_unlock(&gate, 0);
    }
#endif
    gate = kOpenGate;  // of threads that are not here
    has_gate = false;
    Process::current_.fetch_add(1);
    for (Block* block = &list; block != nullptr; block = block->next.load()) {
      for (std::atomic<int>& slot : block->slots) {
        const int entered = slot.exchange(kFree);
        if (entered != kFree) close(entered - 1);
      }
    }
    errno = error;
  }
  static bool Install() {
    return pthread_atfork(&BeforeFork, &InParent, &InChild) == 0;
  }
};

namespace {

[[maybe_unused]] const bool installed = ForkHandlers::Install();

}  // namespace

Process::Process()
    : generation_(current_.load(std::memory_order_relaxed)), id_(getpid()) {}

ForkPause::ForkPause() { pthread_rwlock_rdlock(&gate); }

ForkPause::~ForkPause() {
  if (process_.IsCurrent()) pthread_rwlock_unlock(&gate);
}

ClosedInChildren::ClosedInChildren(int fd) : slot_(Enter(fd)) {}

ClosedInChildren::ClosedInChildren(ClosedInChildren&& other) noexcept
    : process_(other.process_), slot_(std::exchange(other.slot_, nullptr)) {}

ClosedInChildren& ClosedInChildren::operator=(
    ClosedInChildren&& other) noexcept {
  if (this == &other) return *this;
  Forget();
  process_ = other.process_;
  slot_ = std::exchange(other.slot_, nullptr);
  return *this;
}

void ClosedInChildren::Forget() {
  if (slot_ != nullptr && process_.IsCurrent()) slot_->store(kFree);
  slot_ = nullptr;
}

OwnDescriptor::OwnDescriptor(OwnDescriptor&& other) noexcept
    : process_(other.process_),
      fd_(std::exchange(other.fd_, -1)),
      entry_(std::move(other.entry_)) {}

OwnDescriptor& OwnDescriptor::operator=(OwnDescriptor&& other) noexcept {
  if (this == &other) return *this;
  Close();
  process_ = other.process_;
  fd_ = std::exchange(other.fd_, -1);
  entry_ = std::move(other.entry_);
  return *this;
}

OwnDescriptor OwnDescriptor::Open(const std::string& path, int flags,
                                  mode_t mode) {
  return OpenAt(AT_FDCWD, path, flags, mode);
}

OwnDescriptor OwnDescriptor::OpenAt(int directory, const std::string& name,
                                    int flags, mode_t mode) {
  const ForkPause pause;
  return Of(openat(directory, name.c_str(), flags, mode));
}

OwnDescriptor OwnDescriptor::Of(int fd) {
  OwnDescriptor own;
  if (fd < 0) return own;
  own.fd_ = fd;
  own.entry_ = ClosedInChildren(fd);
  return own;
}

OwnDescriptor OwnDescriptor::Share() const {
  const ForkPause pause;
  return Of(fcntl(get(), F_DUPFD_CLOEXEC, 0));
}

void OwnDescriptor::Close() {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0 || !process_.IsCurrent()) return;
  const int error = errno;
  const ForkPause pause;
  close(fd);
  entry_.Forget();
  errno = error;
}

}  // namespace terrace
