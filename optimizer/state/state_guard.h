// When an optimizer's state may be used: never in a forked child, never after
// an error that left it of no use, by no step while it is read or written, and
// by none after a load that ended half-way.
//
// Its methods return OK or why not: `what` begins the message ("no step").
//
// One thread at a time.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/process.h"

namespace terrace {

class StateGuard {
 public:
  // `name` is the optimizer's.
  explicit StateGuard(std::string name) : name_(std::move(name)) {}
  StateGuard(const StateGuard&) = delete;
  StateGuard& operator=(const StateGuard&) = delete;

  bool IsOwnProcess() const { return process_.IsCurrent(); }

  // It can be used at all: Cancelled in a forked child, which has none of the
  // threads that anything here waits for; else what Poison was told.
  absl::Status CheckUsable() const;
  // And nothing reads or writes the state.
  absl::Status CheckFree(absl::string_view what) const;
  // That no load ended before it was whole.
  absl::Status CheckLoaded(absl::string_view what) const;

  // It is of no more use, and this is why. OK: it is.
  void Poison(absl::Status why) { poison_ = std::move(why); }

  void BeginRead() { reading_ = true; }
  void EndRead() { reading_ = false; }
  void BeginLoad() { writing_ = half_loaded_ = true; }
  // `whole`: all of the state is as it was saved.
  void EndLoad(bool whole) {
    writing_ = false;
    if (whole) half_loaded_ = false;
  }
  // The state is that before the first step.
  void ForgetLoad() { half_loaded_ = false; }

 private:
  const std::string name_;
  const Process process_;
  absl::Status poison_;
  bool reading_ = false;      // a StateReader is there
  bool writing_ = false;      // or a StateWriter that is not committed
  bool half_loaded_ = false;  // one began, and none committed since
};

}  // namespace terrace
