// The edges between tiers, each with the transport that moves bytes along it;
// and the one place where the mover sleeps.
//
// Mover only. What wakes it is a move's end, or the inbox, which calls the
// engine's own Wake.
#pragma once

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
  // are tiers 1 to `mapped`, `io`'s path k is tier 1 + mapped + k of `disks`;
  // and to and from a device (null: there is none). `io` is given without disks
  // too: the mover sleeps in its engine.
  Links(std::unique_ptr<IoPaths> io, std::unique_ptr<CopyTransport> copies,
        int mapped, int disks, std::unique_ptr<Transport> device = nullptr);

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
  // Bytes along an edge of the device.
  void AddMoved(Edge edge, int64_t bytes) { moved_[IndexOf(edge)] += bytes; }
  int64_t moved(Edge edge) const { return moved_[IndexOf(edge)]; }
  // Of late moves to and from a device, until they are released.
  void AddQuarantined(int64_t bytes) { quarantined_bytes_ += bytes; }
  int64_t quarantined_bytes() const { return quarantined_bytes_; }
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
    return static_cast<size_t>((edge.from - kHbmTier) * tiers_ + edge.to -
                               kHbmTier);
  }
  Transport& on(Edge edge);

  const std::unique_ptr<IoPaths> io_;
  const std::unique_ptr<CopyTransport> copies_;
  const TierId first_disk_;
  const int tiers_;  // a device's counted, even if there is none
  const std::unique_ptr<Transport> device_;
  DiskTransport disks_;
  std::vector<Transport*> transports_;   // all of the above
  std::vector<Transport*> edges_;        // by IndexOf; null: none
  std::vector<absl::Duration> blocked_;  // as those
  std::vector<int64_t> moved_;           // as those
  int64_t quarantined_bytes_ = 0;        // of the device's
};

}  // namespace terrace
