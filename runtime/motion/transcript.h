// What a mover did, line by line and in order: enough to tell whether two
// movers, or a mover before and after a change, did the same. Times are those
// of the mover's clock; there are no tags of transfers, tokens, offsets or
// texts in it. For tests: a mover that is given none writes none.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace terrace {

enum class TranscriptEvent : uint8_t {
  kMoveStarted,
  kMoveEnded,     // for its tensor: done, failed, or past its deadline
  kMoveReleased,  // of one past its deadline: its bytes are back
  kReady,
};

// Tier 0 is memory; tier 1 + k is disk path k.
struct TranscriptLine {
  absl::Time at;
  TranscriptEvent event = TranscriptEvent::kMoveStarted;
  absl::StatusCode code = absl::StatusCode::kOk;
  // Of a move.
  int64_t tensor = -1;
  int from = -1;
  int to = -1;
  int io_class = -1;  // as it was started
  uint64_t generation = 0;
  // Of a group that is ready.
  int64_t queue = -1;
  uint64_t tag = 0;  // the customer's
  int cause = -1;
};

using Transcript = std::vector<TranscriptLine>;

}  // namespace terrace
