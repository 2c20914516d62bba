// What a child of fork() must not share with its parent, and how an object of
// the parent knows that it is in a child.
//
// A child has the parent's memory as it was, none of its threads, and a copy of
// each descriptor: an open file, a lock, a claim on a device or a ring outlives
// the parent with it. So objects remember the process that made them, and
// refuse or do nothing in another; and descriptors are listed here, which a
// child closes before fork() returns in it. In the parent it may have returned
// before: what must be free at once is unlocked there, and claimed with some
// patience. A child never unlocks: that would unlock the parent's.
//
// The list and the generation are of the whole process, as fork() is; nothing
// else here is. The child's handler takes no lock, allocates nothing and calls
// close() alone, so that it may come at any moment of any thread.
// vfork() and posix_spawn() run no handler: what they start begins with exec,
// which closes all that is O_CLOEXEC.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace terrace {

// The process in which this was made. Thread-safe, constant.
class Process {
 public:
  Process();

  // False in its children, and in theirs. A load of one number.
  bool IsCurrent() const {
    return generation_ == current_.load(std::memory_order_relaxed);
  }
  pid_t id() const { return id_; }

 private:
  friend struct ForkHandlers;
  // Raised in each child, so that no ancestor had the same.
  static std::atomic<uint64_t> current_;

  uint64_t generation_;
  pid_t id_;
};

// No child is made while one of these lives, for short: fork() waits for it, a
// second at most, as an open() may hang. Around what makes or ends a
// descriptor, and its entry in the list. A thread has one at a time.
class ForkPause {
 public:
  ForkPause();
  ~ForkPause();
  ForkPause(const ForkPause&) = delete;
  ForkPause& operator=(const ForkPause&) = delete;

 private:
  const Process process_;
};

// The entry of a descriptor that something else owns, of a ring say. It is made
// and ends within the owner's ForkPause, before the number is another's.
class ClosedInChildren {
 public:
  ClosedInChildren() = default;
  explicit ClosedInChildren(int fd);
  ~ClosedInChildren() { Forget(); }
  ClosedInChildren(ClosedInChildren&& other) noexcept;
  ClosedInChildren& operator=(ClosedInChildren&& other) noexcept;

  void Forget();

 private:
  Process process_;
  std::atomic<int>* slot_ = nullptr;
};

// A descriptor of this process alone. One thread at a time.
class OwnDescriptor {
 public:
  OwnDescriptor() = default;
  ~OwnDescriptor() { Close(); }
  OwnDescriptor(OwnDescriptor&& other) noexcept;
  OwnDescriptor& operator=(OwnDescriptor&& other) noexcept;

  // open(2) and openat(2), which set errno if it is not ok().
  static OwnDescriptor Open(const std::string& path, int flags,
                            mode_t mode = 0);
  static OwnDescriptor OpenAt(int directory, const std::string& name, int flags,
                              mode_t mode = 0);
  // Of another kind, just made.
  static OwnDescriptor Of(int fd);
  // Another descriptor of the same open file, which shares its locks. Sets
  // errno if it is not ok().
  OwnDescriptor Share() const;

  const Process& process() const { return process_; }
  // -1: there is none, or this is a child, whose copy is closed.
  int get() const { return process_.IsCurrent() ? fd_ : -1; }
  bool ok() const { return get() >= 0; }
  // Gives up its locks too. Keeps errno.
  void Close();

 private:
  Process process_;
  int fd_ = -1;
  ClosedInChildren entry_;
};

}  // namespace terrace
