// Looking for what the other side of a ring writes, for a while before
// sleeping: a wake-up of a thread takes longer than all the rest of a request.
#pragma once

#include "absl/functional/function_ref.h"

namespace terrace {

// Whether this process has processors for that: one for each side's thread, and
// one for the work that is waited with. TERRACE_SPIN=always and =never, for
// measurements, decide whatever there is.
bool HasProcessorsToSpin();

// Until it is over, which is the answer, or for as long as a wake-up across
// processors takes, about 50 us.
bool Spin(absl::FunctionRef<bool()> is_over);

}  // namespace terrace
