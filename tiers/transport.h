// One kind of edge between tiers: it moves bytes. Whole moves or a Status,
// never short; exactly one Moved each, but for one past its deadline, which has
// a second one (`released`) when the device has let go of the bytes.
//
// One thread, the mover's; nothing here blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "aio/io_paths.h"
#include "tiers/extent.h"
#include "tiers/reservation.h"

namespace terrace {

struct Edge {
  TierId from = kNoTier;
  TierId to = kNoTier;

  friend constexpr bool operator==(Edge, Edge) = default;
};

// A move has memory at one end, the near one. Of two memories that is the one
// of the lesser number.
constexpr bool IsFromFar(Edge edge) {
  return IsMemory(edge.to) &&
         (!IsMemory(edge.from) || edge.from.number > edge.to.number);
}
constexpr TierId FarEnd(Edge edge) {
  return IsFromFar(edge) ? edge.from : edge.to;
}
constexpr TierId NearEnd(Edge edge) {
  return IsFromFar(edge) ? edge.to : edge.from;
}

struct Move {
  uint64_t tag = 0;  // unique among moves under way
  Edge edge;
  Extent from;
  Extent to;  // both have the same size
  // Of the end that the CPU addresses; null: of neither.
  std::byte* data = nullptr;
  IoClass io_class = IoClass::kDemand;
  // When the bytes are needed at their end.
  absl::Time need_by = absl::InfiniteFuture();
  absl::Duration timeout = absl::InfiniteDuration();  // as IoTransfer's
};

struct Moved {
  uint64_t tag = 0;
  // DataLoss: what `from` held is gone for good. Of anything else it may be
  // tried again.
  absl::Status status;
  bool late = false;      // DeadlineExceeded; both ends stay as they are
  bool released = false;  // a late one's ends are free; status is its own
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual void Begin(const Move& move) = 0;
  // Drops what is not yet issued: the move ends as Cancelled when the rest has
  // landed. Of one that is issued as a whole a disk's ends as Cancelled all the
  // same, a copy's as it ends: what it moved is whole then. No such move:
  // nothing.
  virtual void Cancel(Edge edge, uint64_t tag) = 0;
  // Raises a move under way to a more urgent class.
  virtual void Promote(Edge edge, uint64_t tag, IoClass io_class) = 0;
  // Turns the crank; appends what ended.
  virtual void Poll(std::vector<Moved>* moved) = 0;
  virtual int64_t pending() const = 0;  // late ones included
  // When Poll has something to do without an outside event.
  virtual absl::Time NextEvent() const = 0;
};

}  // namespace terrace
