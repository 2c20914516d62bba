#include "daemon/server/holdings_end.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/threads/own_thread.h"

namespace terrace {
namespace {

OwnDescriptor MakeEvent() {
  const ForkPause pause;
  return OwnDescriptor::Of(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

}  // namespace

// The thread has it too, as it may be left behind.
struct HoldingsEnd::State {
  explicit State(std::unique_ptr<Holdings> which)
      : holdings(std::move(which)) {}

  void End(const absl::Status& how) {
    MutexLock lock(mutex);
    status = how;
    const uint64_t one = 1;
    // Without it the deadline tells.
    if (write(ended.get(), &one, sizeof(one)) < 0) return;
  }

  const std::unique_ptr<Holdings> holdings;
  const OwnDescriptor ended = MakeEvent();
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

int HoldingsEnd::descriptor() const { return state_->ended.get(); }

}  // namespace terrace
