// A thread that waits within an operation for what other threads do waits
// without Python's lock, if it has that, since the others may need the lock to
// go on.
#pragma once

namespace terrace {

// A WithoutPython object gives Python's lock up until its end, where the
// process has Python and this thread has the lock.
class WithoutPython {
 public:
  WithoutPython();
  ~WithoutPython();
  WithoutPython(const WithoutPython&) = delete;
  WithoutPython& operator=(const WithoutPython&) = delete;

 private:
  void* state_ = nullptr;  // Python's state of the thread
};

}  // namespace terrace
