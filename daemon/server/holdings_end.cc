#include "daemon/server/holdings_end.h"

#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/threads/own_thread.h"
#include "daemon/wire/wake_event.h"

namespace terrace {
// The thread has it too, as it may be left behind.
struct HoldingsEnd::State {
  explicit State(std::unique_ptr<Holdings> which)
      : holdings(std::move(which)) {}

  void End(const absl::Status& how) {
    MutexLock lock(mutex);
    status = how;
    // Without it the deadline tells.
    if (ended.ok()) ended->Set();
  }

  const std::unique_ptr<Holdings> holdings;
  const absl::StatusOr<WakeEvent> ended = WakeEvent::Make();
  Mutex mutex;
  std::optional<absl::Status> status ABSL_GUARDED_BY(mutex);
};

HoldingsEnd::HoldingsEnd(std::unique_ptr<Holdings> holdings,
                         absl::Time deadline)
    : deadline_(deadline),
      state_(std::make_shared<State>(std::move(holdings))) {
  try {
    thread_ = StartThread("terrace-end", [deadline, state = state_] {
      state->End(state->holdings->Close(deadline));
    });
  } catch (const std::system_error& error) {
    state_->End(absl::ResourceExhaustedError(
        absl::StrCat("cannot start the end's thread: ", error.what())));
  }
}

HoldingsEnd::~HoldingsEnd() {
  if (!thread_.joinable()) return;
  bool has_ended = false;
  {
    MutexLock lock(state_->mutex);
    has_ended = state_->status.has_value();
  }
  has_ended ? thread_.join() : thread_.detach();
}

std::shared_ptr<const Holdings::Report> HoldingsEnd::report() const {
  return state_->holdings->report();
}

bool HoldingsEnd::IsOver() const {
  MutexLock lock(state_->mutex);
  return state_->status.has_value() || SystemClock().Now() >= deadline_;
}

absl::Status HoldingsEnd::status() const {
  MutexLock lock(state_->mutex);
  if (state_->status.has_value()) return *state_->status;
  return absl::DeadlineExceededError(
      "the runtime has not ended within its deadline");
}

int HoldingsEnd::descriptor() const {
  return state_->ended.ok() ? state_->ended->descriptor() : -1;
}

}  // namespace terrace
