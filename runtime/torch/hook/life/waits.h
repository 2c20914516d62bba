// How a thread waits within an operation for what other threads do: without
// Python's lock, if it has that, since the others may need it to go on.
#pragma once

#include "runtime/torch/hook/life/storage_life.h"

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

// As ResidencyWord's; it ends with what another thread does to the storage:
// adds it, moves it out, or closes its hook.
void AwaitLife(StorageLife& storage, bool holds_pins = false);

}  // namespace terrace
