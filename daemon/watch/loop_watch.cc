#include "daemon/watch/loop_watch.h"

#include <poll.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/threads/own_thread.h"
#include "daemon/wire/poll_timeout.h"

namespace terrace {

absl::StatusOr<std::unique_ptr<LoopWatch>> LoopWatch::Start(
    std::shared_ptr<LoopTable> table, std::shared_ptr<LoopPages> pages,
    std::vector<Asked> asked) {
  TERRACE_ASSIGN_OR_RETURN(WakeEvent end, WakeEvent::Make());
  try {
    return std::unique_ptr<LoopWatch>(new LoopWatch(
        std::move(table), std::move(pages), std::move(asked), std::move(end)));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start the watch of loops: ", error.what()));
  }
}

LoopWatch::LoopWatch(std::shared_ptr<LoopTable> table,
                     std::shared_ptr<LoopPages> pages, std::vector<Asked> asked,
                     WakeEvent end)
    : table_(std::move(table)),
      pages_(std::move(pages)),
      asked_(std::move(asked)),
      end_(std::move(end)),
      turned_at_(absl::ToUnixNanos(SystemClock().Now())) {
  thread_ = StartThread("terrace-loops", [this] { Run(); });
}

LoopWatch::~LoopWatch() {
  ends_ = true;
  end_.Set();
  thread_.join();
}

void LoopWatch::Run() {
  absl::Time next = SystemClock().Now();
  while (!ends_) {
    const absl::Time now = SystemClock().Now();
    // Nor have the others had the time to answer.
    if (now - next > kPeriod) table_->SetStoodStill(now);
    Turn(now);
    next = now + kPeriod;
    pollfd wait = {end_.descriptor(), POLLIN, 0};
    poll(&wait, 1, PollTimeout(next));
  }
}

void LoopWatch::Turn(absl::Time now) {
  turned_at_.store(absl::ToUnixNanos(now), std::memory_order_relaxed);
  for (const Asked& each : asked_) {
    bool is_any_asked = false;
    for (Heartbeat* const one : each.heartbeats) is_any_asked |= one->Ask(now);
    if (is_any_asked) each.wake();
  }
  pages_->Write(*table_, now);
}

absl::Duration LoopWatch::SilenceAt(absl::Time now) const {
  const absl::Time turned =
      absl::FromUnixNanos(turned_at_.load(std::memory_order_relaxed));
  return std::max(absl::ZeroDuration(), now - turned - kPeriod);
}

}  // namespace terrace
