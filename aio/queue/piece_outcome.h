// The table of outcomes: what a result means for the piece that it answers.
//
//   result                   |
//   all of its bytes         | it is whole
//   a block or more, not all | it goes on behind them, at once
//   less than a block        | the same again after a pause, up to max_retries
//   none, of a read          | DataLoss: the end of the file
//   none, of a write         | as EIO
//   EAGAIN, EINTR            | again after a pause, up to max_retries
//   EIO of a read            | again after a pause, up to read_error_retries
//   any other error          | it failed with that
//
// Pure functions.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "aio/io_transfer.h"

namespace terrace {

struct PieceOutcome {
  int64_t moved_bytes = 0;  // whole blocks, from its start on
  // With no block moved: how often it may be tried again before `error` is
  // what became of it.
  int retries = 0;
  absl::Status error;
};

// Of a piece of the file at `path`, for a result that is not all of its bytes.
PieceOutcome OutcomeOf(const IoRequest& request, int64_t result,
                       absl::string_view path, const IoQueueOptions& options);

// Before the retry that follows `attempts` others: 100 us, doubled each time,
// at most 50 ms.
absl::Duration RetryPause(int attempts);

}  // namespace terrace
