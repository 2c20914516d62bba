// Keeps a program's floating-point mode out of the library's arithmetic. A
// thread inherits the mode of the one that starts it, and a program may set
// another (torch.set_flush_denormal, fesetround), which changes bits.
//
//   const DefaultFloatingPoint mode;
//   ... rounds to nearest, keeps subnormals, traps nothing ...
#pragma once

#include <cfenv>

namespace terrace {

// This thread computes in the default environment (FE_DFL_ENV) while it lives
// and in that of before, flags included, from then on.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() {
    std::fegetenv(&previous_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatingPoint() { std::fesetenv(&previous_); }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
  std::fenv_t previous_;
};

}  // namespace terrace
