// A transfer that a path's queue has and has not ended, and which of several is
// due first.
//
// Plain values; the queue's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "aio/io_transfer.h"
#include "base/bytes.h"

namespace terrace {

struct Transfer {
  IoTransfer request;
  int64_t order = 0;  // of arrival
  absl::Time enqueued;
  // Its place among the Expiries: it cannot expire earlier.
  absl::Time check_at = absl::InfiniteFuture();
  int64_t piece_limit = 0;  // that piece_bytes is of
  int64_t piece_bytes = 0;  // of each piece but perhaps the last
  int64_t issued_bytes = 0;
  int live_pieces = 0;       // staged, in flight or waiting for a retry
  int in_flight_pieces = 0;  // the kernel has the buffer
  absl::Status first_error;  // of a result
  bool cancelled = false;
  bool expired = false;    // its DeadlineExceeded was delivered
  bool has_drops = false;  // bytes that never moved

  bool stopped() const { return cancelled || expired || !first_error.ok(); }
  bool all_issued() const { return issued_bytes == request.size_bytes; }

  // Of equal pieces of what is left, in whole blocks but for the last; none
  // larger than `limit`, whole blocks too.
  int64_t NextPieceBytes(int64_t limit) {
    const int64_t left = request.size_bytes - issued_bytes;
    if (piece_limit != limit) {
      const int64_t count = (left + limit - 1) / limit;
      const int64_t blocks = (left + kBlockBytes - 1) / kBlockBytes;
      piece_limit = limit;
      piece_bytes = (blocks + count - 1) / count * kBlockBytes;
    }
    return std::min(piece_bytes, left);
  }
};

// What goes first within a class: the transfer that is due first, were it
// alone, then the first to arrive.
using Urgency = std::pair<absl::Time, int64_t>;
inline Urgency UrgencyOf(const Transfer& transfer) {
  return {transfer.enqueued + transfer.request.timeout, transfer.order};
}

}  // namespace terrace
