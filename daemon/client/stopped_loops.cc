#include "daemon/client/stopped_loops.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

// Two turns of the daemon's watch: the page is another by then.
constexpr absl::Duration kTurns = absl::Seconds(1);

}  // namespace

absl::Status StoppedLoops::Look(absl::Time now, absl::Time oldest) {
  next_ = absl::InfiniteFuture();
  if (oldest == absl::InfiniteFuture()) return absl::OkStatus();
  absl::Duration until = std::max(kTurns, ServesWithin());
  // A watch that has stopped says nothing; that of the daemon as a whole is
  // heard of by its silence.
  const uint64_t turns = view_.turns();
  const bool is_new = turns != std::exchange(turns_, turns);
  for (size_t loop = 0; is_new && loop < LoopPage::kLoops; ++loop) {
    const absl::Duration silence = view_.SilenceOf(loop);
    if (silence <= absl::ZeroDuration()) continue;
    const absl::Duration left =
        PatienceWith(loop) - std::min(silence, now - oldest);
    if (left <= absl::ZeroDuration()) return Stopped(loop, silence);
    until = std::min(until, std::max(left, kTurns));
  }
  next_ = now + until;
  return absl::OkStatus();
}

absl::Status StoppedLoops::Stopped(size_t loop, absl::Duration silence) const {
  const std::string whose =
      job_.empty() ? "" : absl::StrCat(", of the job '", job_, "',");
  return absl::UnavailableError(absl::StrCat(
      "it is stopped: the loop '", LoopTextAt(loop), "' for this process",
      whose, " has not turned for ",
      absl::FormatDuration(absl::Floor(silence, absl::Milliseconds(1)))));
}

}  // namespace terrace
