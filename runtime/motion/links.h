// The edges between tiers, each with the transport that moves bytes along it;
// and the one place where the mover sleeps.
//
// Mover only. What wakes it is a move's end, or the inbox, which calls the
// engine's own Wake.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "aio/io_paths.h"
#include "tiers/copy_transport.h"
#include "tiers/disk/disk_transport.h"
#include "tiers/transport.h"

namespace terrace {

class Links {
 public:
  // Memory to and from the resting tiers, mapped ones first: those of `copies`
  // are tiers 1 to `mapped`, `io`'s path k is tier 1 + mapped + k of `disks`.
  // `io` is given without disks too: the mover sleeps in its engine.
  Links(std::unique_ptr<IoPaths> io, std::unique_ptr<CopyTransport> copies,
        int mapped, int disks);

  void Begin(const Move& move) { on(move.edge).Begin(move); }
  void Cancel(Edge edge, uint64_t tag) { on(edge).Cancel(edge, tag); }
  void Promote(Edge edge, uint64_t tag, IoClass io_class) {
    on(edge).Promote(edge, tag, io_class);
  }
  void Poll(std::vector<Moved>* moved);
  int64_t pending() const;
  absl::Time NextEvent() const;

  // Sleeps until a message, a move's end, or `deadline`.
  void Wait(absl::Time deadline) { io_->Wait(deadline); }

  // Of what moved between memory and that tier.
  IoPathStats stats(TierId resting) const;
  // How long queues were held up by an edge so far.
  void AddBlocked(Edge edge, absl::Duration time) {
    blocked_[IndexOf(edge)] += time;
  }
  absl::Duration blocked(Edge edge) const { return blocked_[IndexOf(edge)]; }
  EngineInfo engine_info() const { return io_->engine_info(); }
  // Leaves behind what moves that never ended may still use.
  void Abandon() { io_->Abandon(); }

 private:
  size_t IndexOf(Edge edge) const {
    return static_cast<size_t>(edge.from * tiers_ + edge.to);
  }
  Transport& on(Edge edge);

  const std::unique_ptr<IoPaths> io_;
  const std::unique_ptr<CopyTransport> copies_;
  const TierId first_disk_;
  const int tiers_;
  DiskTransport disks_;
  const std::array<Transport*, 2> transports_;  // both of the above
  std::vector<Transport*> edges_;               // by IndexOf; null: none
  std::vector<absl::Duration> blocked_;         // as those
};

}  // namespace terrace
