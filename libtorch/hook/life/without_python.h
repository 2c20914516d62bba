// How a thread waits within an operation for what other threads do: without
// Python's lock, if it has that, since the others may need it to go on.
#pragma once

namespace terrace {

// Gives Python's lock up until its end, where the process has Python and this
// thread its lock.
class WithoutPython {
 public:
  WithoutPython();
  ~WithoutPython();
  WithoutPython(const WithoutPython&) = delete;
  WithoutPython& operator=(const WithoutPython&) = delete;

 private:
  void* state_ = nullptr;  // of the thread, for Python
};

}  // namespace terrace
