// A thread of a child of this process that does not turn any more, as far as
// the others can see, until the object's end.
//
// It belongs to the thread that made it, which alone may be the tracer.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace terrace {

// Those of a process that have that name, the oldest first.
std::vector<pid_t> ThreadsNamed(pid_t process, const std::string& name);

class StoppedThread {
 public:
  // ok() is false where there is none or tracing is not allowed.
  explicit StoppedThread(pid_t thread);
  // The oldest of that name.
  StoppedThread(pid_t process, const std::string& name);
  ~StoppedThread();
  StoppedThread(const StoppedThread&) = delete;
  StoppedThread& operator=(const StoppedThread&) = delete;

  bool ok() const { return is_stopped_; }
  // The address of its next instruction; 0: nobody says so.
  uintptr_t at() const;
  // Until its process ends, which is not seen to have ended before.
  void AwaitEnd();

 private:
  pid_t thread_ = 0;
  bool is_stopped_ = false;
};

// Stops a thread of that process again and again until it is in the allocator
// of the C library, as far as the addresses of its functions tell. Null: it was
// not seen there.
std::unique_ptr<StoppedThread> StopInAllocator(pid_t process, pid_t thread);

}  // namespace terrace
