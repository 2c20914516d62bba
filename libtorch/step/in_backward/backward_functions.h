// In which functions of autograd a thread is: one that runs a backward pass
// within itself is the outermost of what accumulates gradients there.
//
// Threads know while one of these is alive, from the next function on.
// Thread-safe.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <functional>

namespace terrace {

class BackwardFunctions {
 public:
  BackwardFunctions();
  ~BackwardFunctions();
  BackwardFunctions(const BackwardFunctions&) = delete;
  BackwardFunctions& operator=(const BackwardFunctions&) = delete;

  // The outermost one that this thread is in, another number each time; 0:
  // none. A hook behind a function is not in it.
  static uint64_t Outermost();
  // By this thread, which is in one, as soon as it has left the outermost:
  // still in the backward pass of that. It must not throw.
  static void AfterOutermost(std::function<void()> call);

  // Whether the backward pass that this thread is in has functions of programs,
  // which may run others within themselves.
  static bool HasProgramFunctions();

 private:
  const at::CallbackHandle handle_;
};

}  // namespace terrace
