// How poll(2) says a time to wait until.
#pragma once

#include "absl/time/time.h"

namespace terrace {

// Milliseconds until that time by SystemClock(), none too few; an hour at most,
// so that a longer wait is several. 0: it has passed.
int PollTimeout(absl::Time until);

}  // namespace terrace
