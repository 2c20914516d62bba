// How many times slower the machine of a test is than one of its own: what a
// test waits for at most, and what it gives a healthy device, is so many times
// as long. TERRACE_TEST_SLOW says it of an emulated machine.
#pragma once

#include <cstdlib>

#include "absl/time/time.h"

namespace terrace {

inline absl::Duration OnThisMachine(absl::Duration time) {
  const char* const slow = std::getenv("TERRACE_TEST_SLOW");
  return slow == nullptr ? time : time * std::atof(slow);
}

}  // namespace terrace
