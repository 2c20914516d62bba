#include "daemon/wire/poll_timeout.h"

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace terrace {
namespace {

constexpr absl::Duration kLongest = absl::Hours(1);

}  // namespace

int PollTimeout(absl::Time until) {
  const absl::Duration left =
      std::clamp(until - SystemClock().Now(), absl::ZeroDuration(), kLongest);
  const int64_t whole = absl::ToInt64Milliseconds(left);
  return static_cast<int>(left > absl::ZeroDuration() ? whole + 1 : whole);
}

}  // namespace terrace
