// The link of a queue that shares it with nobody: there is room or there is
// none, and only an answer of the device makes some.
//
// One thread, the queue's.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "aio/queue/in_flight_limits.h"
#include "aio/queue/in_flight_use.h"
#include "aio/queue/link_share.h"

namespace terrace {

class OwnLink final : public LinkShare {
 public:
  // `slots`: that the engine has for its pieces.
  OwnLink(const IoQueueOptions& options, int slots)
      : limits_(options), use_(slots) {}

  int64_t piece_bytes() const override { return limit().piece_bytes(); }
  int64_t limit_bytes() const override { return limit().bytes(); }
  void OnClass(absl::Time now, IoClass io_class) override {
    limits_.OnClass(now, io_class);
  }
  void OnAnswer(absl::Time now, int64_t bytes, bool is_read,
                bool has_more) override {
    limits_.OnAnswer(now, bytes, is_read, has_more);
  }

  bool MayTake(const LinkPiece& piece) const override {
    return use_.HasRoom(piece.size_bytes, limit().bytes());
  }
  // A device may serve both directions at once. So in a mixed load one that has
  // the queue to itself for a moment leaves half of the limit to the other,
  // which would otherwise find it full.
  bool Take(const LinkPiece& piece) override {
    if (!MayTake(piece)) return false;
    if (piece.leaves_half && limit().is_mixed() &&
        !use_.LeavesHalf(piece.direction, piece.size_bytes, limit().bytes())) {
      return false;
    }
    use_.Enter(piece.direction, piece.size_bytes);
    return true;
  }
  void Give(IoDirection direction, int64_t size_bytes) override {
    use_.Leave(direction, size_bytes);
  }
  void Rest() override {}
  absl::Time NextEvent() const override { return absl::InfiniteFuture(); }

 private:
  const InFlightLimit& limit() const { return limits_.holding(); }

  InFlightLimits limits_;
  InFlightUse use_;  // staged and in flight, not quarantined
};

}  // namespace terrace
