// What a path's queue may have in flight on the link to its device: alone, all
// that the link's limit lets in (aio/queue/own_link.h); beside others, what is
// its turn.
//
// A queue asks for each piece before it issues it, and gives it back when it
// has ended. One that is refused waits, and says when it does so no longer:
// with another piece, or with none. Who shares a link is woken when it may go,
// and then asks again.
//
// One thread, the queue's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "aio/engine.h"
#include "aio/io_transfer.h"

namespace terrace {

struct LinkPiece {
  IoDirection direction = IoDirection::kRead;
  // The most urgent of what waits in its queue, which may be behind it.
  IoClass io_class = IoClass::kDemand;
  int64_t size_bytes = 0;
  // Where both directions are in use it takes no more than half of the limit:
  // of its queue nothing waits for the other half.
  bool leaves_half = false;
};

class LinkShare {
 public:
  // Gives back what its queue has in flight.
  virtual ~LinkShare() = default;

  // Of a piece, at most; and of all that is in flight.
  virtual int64_t piece_bytes() const = 0;
  virtual int64_t limit_bytes() const = 0;

  // As InFlightLimits's.
  virtual void OnClass(absl::Time now, IoClass io_class) = 0;
  virtual void OnAnswer(absl::Time now, int64_t bytes, bool is_read,
                        bool has_more) = 0;

  // Whether it is worth while to ask for that: false where only an answer of
  // the device, or a turn that comes, can make room.
  virtual bool MayTake(const LinkPiece& piece) const = 0;
  // True: the piece is in flight, until it is given back. False: it waits for
  // room, or its turn.
  virtual bool Take(const LinkPiece& piece) = 0;
  virtual void Give(IoDirection direction, int64_t size_bytes) = 0;
  // It waits for nothing.
  virtual void Rest() = 0;

  // When it is to look again, whatever else happens.
  virtual absl::Time NextEvent() const = 0;
};

// How a queue comes to its share of a link. `wake` may be called on any thread
// until the share has gone, and makes its queue turn again.
using JoinLink =
    std::function<std::unique_ptr<LinkShare>(std::function<void()> wake)>;

}  // namespace terrace
