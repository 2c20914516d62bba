#include "daemon/wire/ring/spin.h"

#include <sched.h>

#include <cstdlib>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace terrace {
namespace {

constexpr absl::Duration kSpin = absl::Microseconds(50);
constexpr int kSpinProcessors = 3;
// Of which each leaves the other thread of a processor a while.
constexpr int kLooksPerClock = 16;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

bool HasProcessorsToSpin() {
  const char* const asked = std::getenv("TERRACE_SPIN");
  const absl::string_view word = asked == nullptr ? "" : asked;
  if (word == "always" || word == "never") return word == "always";
  cpu_set_t processors;
  return sched_getaffinity(0, sizeof(processors), &processors) == 0 &&
         CPU_COUNT(&processors) >= kSpinProcessors;
}

bool Spin(absl::FunctionRef<bool()> is_over) {
  const absl::Time end = SystemClock().Now() + kSpin;
  do {
    for (int i = 0; i < kLooksPerClock; ++i) {
      if (is_over()) return true;
      Pause();
    }
  } while (SystemClock().Now() < end);
  return false;
}

}  // namespace terrace
