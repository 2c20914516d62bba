// A program's own floating-point mode, as its libraries may set it for speed
// or for interval arithmetic.
//
//   const ForeignFloatingPoint mode(FloatingPointMode::kRoundUp);
#pragma once

#include <cfenv>
#include <string>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace terrace {

enum class FloatingPointMode { kFlushSubnormals, kRoundUp, kTrap };

inline std::string FloatingPointModeName(FloatingPointMode mode) {
  if (mode == FloatingPointMode::kFlushSubnormals) return "FlushSubnormals";
  return mode == FloatingPointMode::kRoundUp ? "RoundUp" : "Trap";
}

// Sets the mode of this thread while it lives.
class ForeignFloatingPoint {
 public:
  explicit ForeignFloatingPoint(FloatingPointMode mode) {
    std::fegetenv(&previous_);
    if (mode == FloatingPointMode::kRoundUp) std::fesetround(FE_UPWARD);
    if (mode == FloatingPointMode::kTrap) {
      feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW);
    }
#if defined(__x86_64__)
    constexpr unsigned kFlushResults = 0x8000;
    constexpr unsigned kSubnormalsAreZero = 0x0040;
    if (mode == FloatingPointMode::kFlushSubnormals) {
      _mm_setcsr(_mm_getcsr() | kFlushResults | kSubnormalsAreZero);
    }
#endif
  }
  ~ForeignFloatingPoint() { std::fesetenv(&previous_); }
  ForeignFloatingPoint(const ForeignFloatingPoint&) = delete;
  ForeignFloatingPoint& operator=(const ForeignFloatingPoint&) = delete;

 private:
  std::fenv_t previous_;
};

}  // namespace terrace
