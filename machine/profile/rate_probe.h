// How fast an engine moves pieces of a file: a closed loop that keeps a window
// in flight, without the queue's policies above it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "aio/engine.h"
#include "base/clock.h"
#include "terrace/machine.h"

namespace terrace {

enum class LoadKind : uint8_t { kRead, kWrite, kMixed };

struct RateProbe {
  IoEngine* engine = nullptr;
  int file = -1;                // of the engine
  int64_t file_bytes = 0;       // written once; a multiple of twice the piece
  absl::Span<std::byte> arena;  // at least the window
  Clock* clock = nullptr;
  std::string path;  // for messages
};

// Keeps window_bytes of pieces in flight for `time`, then waits for what is;
// goes through the file in order and starts again at its end. Mixed: reads of
// its first half, one by one with writes of the second. The rate counts from
// the first submission to the last completion. An error, or a piece that came
// back short, is its IoError; nothing is in flight on return. But for
// DeadlineExceeded: nothing completed for 60 s, and what is in flight may still
// use file and arena, so engine, file and arena must be left behind.
// Unavailable: the engine took nothing.
absl::StatusOr<RateProfile> MeasureRate(const RateProbe& probe, LoadKind kind,
                                        int64_t piece_bytes,
                                        int64_t window_bytes,
                                        absl::Duration time);

// Writes all of the file once, from the arena, so that what is measured after
// it allocates nothing. Errors as of MeasureRate.
absl::Status WriteOnce(const RateProbe& probe);

}  // namespace terrace
