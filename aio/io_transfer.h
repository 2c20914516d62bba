// The values that pass between a path's queue and its callers: a transfer, its
// end, what a queue may do and what it has done.
//
// Plain values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "aio/engine.h"

namespace terrace {

// Served by deficit round robin in bytes, by the weights; within a class the
// transfer that is due first goes first: by its arrival and its timeout.
enum class IoClass : uint8_t {
  kDemand = 0,    // is waited for
  kForeseen = 1,  // is waited for, by who asked for it in the last step too
  kPrefetch = 2,
  kWriteBack = 3,
};
inline constexpr int kIoClasses = 4;

// Somebody waits for it.
constexpr bool IsAwaited(IoClass io_class) {
  return io_class <= IoClass::kForeseen;
}

// Offset, size and data are aligned to kBlockBytes. The buffer is the paths'
// until the completion with this tag; after a DeadlineExceeded completion it
// stays the kernel's (quarantined) until a second one, `released`, gives it
// back.
//
// `timeout` is how long the device may leave it unanswered, not how long it
// may take: what waits behind our own transfers, for the in-flight limit or in
// flight, does not expire while these are answered. A request in flight expires
// that long after it was issued or one issued no later was answered; a transfer
// with none in flight, that long after its arrival or the path's last answer.
// What its engine has not begun with then comes back, and is not quarantined.
// So with a device that answers nothing all end within twice the timeout. Time
// in which the queue was not polled, as of a stopped process, is not counted:
// after a gap of more than half a timeout all begin anew.
struct IoTransfer {
  IoDirection direction = IoDirection::kRead;
  IoClass io_class = IoClass::kDemand;
  std::byte* data = nullptr;
  int64_t offset = 0;
  int64_t size_bytes = 0;
  uint64_t tag = 0;
  absl::Duration timeout = absl::InfiniteDuration();
};

struct Completion {
  int path = 0;
  uint64_t tag = 0;
  absl::Status status;       // names path, offset, bytes and errno
  bool quarantined = false;  // DeadlineExceeded; the buffer is not yet back
  bool released = false;     // a quarantined buffer came back; status is its
};

struct IoQueueOptions {
  int64_t in_flight_bytes = 8 << 20;  // the limit; at first, if it adapts
  int64_t piece_bytes = 4 << 20;      // at most; equal pieces
  // Whether the limit follows the device: aio/queue/in_flight_limit.h.
  bool adapts = true;
  int64_t most_in_flight_bytes = 32 << 20;
  // How long what is in flight may take to pass.
  absl::Duration in_flight_latency = absl::Microseconds(1650);
  // The same while all that was waited for lately was foreseen.
  absl::Duration foreseen_latency = absl::Microseconds(3300);
  int max_retries = 8;         // EAGAIN, EINTR, with a growing pause
  int read_error_retries = 2;  // EIO of a read; writes none
  int weights[kIoClasses] = {4, 4, 1, 1};  // in the order of IoClass
};

struct IoPathStats {
  int64_t bytes_read = 0;  // that moved, whatever became of the transfer
  int64_t bytes_written = 0;
  int64_t requests_read = 0;
  int64_t requests_written = 0;
  int64_t retries = 0;
  int64_t continuations = 0;
  int64_t in_flight_bytes = 0;
  int64_t quarantined_bytes = 0;
  int64_t in_flight_limit_bytes = 0;  // now
  // How long requests of that direction were in flight, late ones left out.
  absl::Duration read_busy;
  absl::Duration write_busy;
};

}  // namespace terrace
