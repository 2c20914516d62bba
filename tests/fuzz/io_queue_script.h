// Any bytes as a script of what callers, a device and time do to an IoPaths,
// beside a model that knows nothing of queues: what was asked for, which
// bytes the device moved, what errors it gave. After each step and at the end:
//
// - each transfer ends exactly once, and once more as `released` if it was
//   quarantined; nothing of it is with the device after that;
// - a good end means that every byte was moved, and is right;
// - a bad end names an error that the device gave it, the first that cannot be
//   tried again; a cancel that was made; a deadline that has passed;
// - the device is asked only for bytes of pending transfers, at most once at a
//   time, and for no more at a time than the limit lets in;
// - something always happens next: an answer, an event, or nothing is pending.
//
// One thread; all of it in virtual time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/types/span.h"

namespace terrace {

struct ScriptResult {
  std::string problem;  // empty: none
  int transfers = 0;
  int good_ends = 0;
};

ScriptResult RunIoQueueScript(absl::Span<const uint8_t> script);

}  // namespace terrace
