// The order in which a thread may have several locks at a time: one of a later
// rank while it has earlier ones, never the other way, so that no two threads
// wait for each other. A plain Mutex is a leaf, and none of these.
//
//   OrderedMutex mutex_{LockRank::kStorageLives};
//   OrderedLock lock(mutex_);
//
// Builds with a sanitiser check it at each lock, so that their tests do;
// elsewhere a rank costs nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/mutex.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define TERRACE_CHECKED_LOCKS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define TERRACE_CHECKED_LOCKS 1
#endif
#endif

namespace terrace {

enum class LockRank : uint8_t {
  // An offloaded model, over its hook.
  kOffloadClose,  // one Close at a time
  kOffload,       // the model's place
  // Late updates.
  kUpdateNet,        // which steps are pending
  kPendingStorages,  // what of one is; held as an operation is refused
  // The hook.
  kSavedTensors,     // what autograd saved
  kStorageLives,     // the lives of its storages
  kOperationNet,     // whether operations are seen
  kStorageRegistry,  // where they find storages
  kWindowStep,       // where a step begins
  kWindowQueue,      // which pins a window has
  kUntoldUses,       // which uses its Runtime does not know
  kManagedStorage,   // the message of one
  kHookError,        // the first error
};

// What one thread has. Its order broken, the process ends.
class HeldLocks {
 public:
  static HeldLocks& OfThisThread() {
    thread_local HeldLocks held;
    return held;
  }

  void Take(LockRank rank) {
    for (size_t i = 0; i < count_; ++i) TERRACE_CHECK(ranks_[i] < rank);
    TERRACE_CHECK(count_ < ranks_.size());
    ranks_[count_++] = rank;
  }
  void Give(LockRank rank) {
    size_t at = 0;
    while (at < count_ && ranks_[at] != rank) ++at;
    TERRACE_CHECK(at < count_);
    for (; at + 1 < count_; ++at) ranks_[at] = ranks_[at + 1];
    --count_;
  }

 private:
  std::array<LockRank, 16> ranks_ = {};
  size_t count_ = 0;
};

class ABSL_LOCKABLE OrderedMutex : public Mutex {
 public:
  explicit OrderedMutex(LockRank rank) : rank_(rank) {}
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
#ifdef TERRACE_CHECKED_LOCKS
    HeldLocks::OfThisThread().Take(rank_);
#endif
    Mutex::Lock();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    Mutex::Unlock();
#ifdef TERRACE_CHECKED_LOCKS
    HeldLocks::OfThisThread().Give(rank_);
#endif
  }

 private:
  [[maybe_unused]] const LockRank rank_;
};

class ABSL_SCOPED_LOCKABLE OrderedLock {
 public:
  explicit OrderedLock(OrderedMutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : mutex_(mutex) {
    mutex_.Lock();
  }
  ~OrderedLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  OrderedLock(const OrderedLock&) = delete;
  OrderedLock& operator=(const OrderedLock&) = delete;

 private:
  OrderedMutex& mutex_;
};

}  // namespace terrace
