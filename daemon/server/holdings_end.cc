#include "daemon/server/holdings_end.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
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
  Mutex mutex;
  std::optional<absl::Status> status ABSL_GUARDED_BY(mutex);
  OwnDescriptor ended = MakeEvent();
};

HoldingsEnd::HoldingsEnd(Holdings* holdings, absl::Time deadline)
    : deadline_(deadline), state_(std::make_shared<State>()) {
  TERRACE_CHECK(state_->ended.ok());
  thread_ = StartThread("terrace-end", [holdings, deadline, state = state_] {
    const absl::Status status = holdings->Close(deadline);
    {
      MutexLock lock(state->mutex);
      state->status = status;
    }
    const uint64_t one = 1;
    const ssize_t written = write(state->ended.get(), &one, sizeof(one));
    TERRACE_CHECK(written == sizeof(one));
  });
}

HoldingsEnd::~HoldingsEnd() {
  bool has_ended = false;
  {
    MutexLock lock(state_->mutex);
    has_ended = state_->status.has_value();
  }
  has_ended ? thread_.join() : thread_.detach();
}

bool HoldingsEnd::IsOver() const {
  MutexLock lock(state_->mutex);
  return state_->status.has_value() || absl::Now() >= deadline_;
}

absl::Status HoldingsEnd::status() const {
  MutexLock lock(state_->mutex);
  if (state_->status.has_value()) return *state_->status;
  return absl::DeadlineExceededError(
      "the runtime has not ended within its deadline");
}

int HoldingsEnd::descriptor() const { return state_->ended.get(); }

}  // namespace terrace
