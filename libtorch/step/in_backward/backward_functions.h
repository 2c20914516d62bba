// Tells in which functions of autograd a thread is. A function that runs a
// backward pass within itself is the outermost function of the gradients that
// this pass accumulates on its thread.
//
// The functions of all threads are counted while an object of this class is
// alive, from the next function on. Thread-safe.
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

  // Returns the number of the outermost function that this thread is in, which
  // is another one each time, or 0 when the thread is in none. A hook that runs
  // behind a function is not in the function.
  static uint64_t Outermost();
  // This thread, which is in a function, calls `call` as soon as it has left
  // the outermost one, still in that function's backward pass. `call` must not
  // throw.
  static void AfterOutermost(std::function<void()> call);

  // Returns whether the backward pass that this thread is in has functions of
  // programs, which may run other passes within themselves.
  static bool HasProgramFunctions();

 private:
  const at::CallbackHandle handle_;
};

}  // namespace terrace
