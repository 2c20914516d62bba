// What the mover answers: values, as requests are. A customer's side makes pins
// of what a group was granted.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "terrace/request.h"
#include "terrace/stats.h"
#include "terrace/tensor.h"
#include "tiers/reservation.h"

namespace terrace {

struct OpenedQueue {
  int64_t id = -1;
  TierId tier;  // where its pins are
};

// How a tensor is, the most of what holds of it.
enum class TensorState : uint8_t {
  kUnwritten,
  kClean,   // its newest contents are below, or memory alone has them for good
  kDirty,   // they are not below yet
  kMoving,  // on their way
  kPinned,
  kLost,
};

struct ListedTensor {
  TensorId id;
  std::string name;  // its first bytes, of a long one
  int64_t size_bytes = 0;
  std::string tier;  // the fastest that has its newest contents; "": none
  TensorState state = TensorState::kUnwritten;
};

// A part of a runtime's tensors, in the order of their ids.
struct TensorPage {
  TensorId after;  // as asked
  std::vector<ListedTensor> tensors;
  bool is_last = true;
};

// What an EvictRequest came to: copies in memory, and their room there, headers
// included.
struct Evicted {
  struct Part {
    int64_t tensors = 0;
    int64_t bytes = 0;

    void Add(int64_t more_bytes) {
      ++tensors;
      bytes += more_bytes;
    }
  };

  uint64_t ticket = 0;  // as asked
  Part gone;
  // What stays: pinned, or granted soon;
  Part pinned;
  // on its way in or out, as what was not written by the deadline is;
  Part moving;
  // waited for by a group, or used meanwhile;
  Part wanted;
  // in the window of a queue;
  Part in_windows;
  // and what nothing below takes.
  Part unwritten;
};

// What a LendRequest came to.
struct Lent {
  uint64_t ticket = 0;  // as asked
  int64_t bytes = 0;    // that are lent now
  bool is_over = true;  // else more may follow
  // Of what was to be lent, and stays: promised to queues, as their windows;
  // pinned, or on its way.
  int64_t promised_bytes = 0;
  int64_t held_bytes = 0;
};

// The answer to one request. An error is the Status, whatever was asked for.
using Answer = std::variant<absl::Status, std::vector<TensorId>, OpenedQueue,
                            Stats, TensorPage, Evicted, Lent>;

// A pin, as the mover gives it: where the tensor's payload is on the tier of
// the queue that asked for it. It ends by an EndPinRequest of that token.
struct Grant {
  uint64_t token = 0;
  TensorId tensor;
  int64_t offset = 0;
  int64_t size_bytes = 0;
};
// Few groups have more; those take an allocation.
using Grants = absl::InlinedVector<Grant, 2>;

// The answer to a PushRequest or a PushBytesRequest: a grant per want, in
// order, or why not.
struct ReadyGroup {
  uint64_t tag = 0;  // as pushed
  absl::StatusOr<Grants> grants = absl::UnknownError("not ready");
  WaitCause cause = WaitCause::kNone;
  int64_t beyond_bytes = 0;  // of the granted, beside the tier's budget
  int64_t ahead = 0;         // of the granted, read before they were asked for
  // Tokens of pins of the queue that are too many with these: whoever takes the
  // answer is to answer them.
  std::vector<uint64_t> recalls;
};

}  // namespace terrace
