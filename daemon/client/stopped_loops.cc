#include "daemon/client/stopped_loops.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

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
    if (left <= absl::ZeroDuration()) {
      next_ = now + kTurns;
      return Stopped(silence);
    }
    until = std::min(until, std::max(left, kTurns));
  }
  next_ = now + until;
  return absl::OkStatus();
}

// One that has stopped may hold up another: all are named.
absl::Status StoppedLoops::Stopped(absl::Duration silence) const {
  std::vector<std::string> names;
  for (size_t loop = 0; loop < LoopPage::kLoops; ++loop) {
    if (view_.SilenceOf(loop) <= absl::ZeroDuration()) continue;
    names.push_back(absl::StrCat("'", LoopTextAt(loop), "'"));
  }
  if (names.empty()) return absl::OkStatus();  // it has just gone on
  const std::string whose =
      job_.empty() ? "" : absl::StrCat(", of the job '", job_, "',");
  return absl::UnavailableError(absl::StrCat(
      "it is stopped: ", names.size() > 1 ? "the loops " : "the loop ",
      absl::StrJoin(names, " and "), " for this process", whose,
      names.size() > 1 ? " have" : " has", " not turned for ",
      absl::FormatDuration(absl::Floor(silence, absl::Milliseconds(1)))));
}

}  // namespace terrace
