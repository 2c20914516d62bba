// The end of the holdings, in a thread of its own, as a runtime whose mover has
// stopped never answers.
//
// It belongs to the thread that made it.
#pragma once

#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "daemon/server/holdings.h"

namespace terrace {

class HoldingsEnd {
 public:
  // Closes the holdings. It is over at the deadline, by SystemClock(), whatever
  // became of that, and at once where there is no thread to be had.
  HoldingsEnd(std::unique_ptr<Holdings> holdings, absl::Time deadline);
  // Waits for the thread where that has ended; else thread and holdings are
  // left, and the process is to end without them.
  ~HoldingsEnd();
  HoldingsEnd(const HoldingsEnd&) = delete;
  HoldingsEnd& operator=(const HoldingsEnd&) = delete;

  // Whether they have ended, or the deadline has passed.
  bool IsOver() const;
  // Of what is over: DeadlineExceeded where they have not ended.
  absl::Status status() const;
  // The holdings' newest.
  std::shared_ptr<const Holdings::Report> report() const;

  absl::Time deadline() const { return deadline_; }
  // Readable once they have ended. For poll(2) alone.
  int descriptor() const;

 private:
  struct State;
  const absl::Time deadline_;
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace terrace
