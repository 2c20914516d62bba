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
  // Memory to and from the resting tiers: those of `copies`, and disk k by
  // `io`'s path k; and to and from devices, device k by the k-th transport.
  // `io` is given without disks too: the mover sleeps in its engine.
  Links(std::unique_ptr<IoPaths> io, std::unique_ptr<CopyTransport> copies,
        std::vector<std::unique_ptr<Transport>> devices = {});

  void Begin(const Move& move) { ForPoll(move.edge).Begin(move); }
  void Cancel(Edge edge, uint64_t tag) { ForPoll(edge).Cancel(edge, tag); }
  void Promote(Edge edge, uint64_t tag, IoClass io_class) {
    ForPoll(edge).Promote(edge, tag, io_class);
  }
  // Whether any of that came since the last Poll.
  bool needs_poll() const { return needs_poll_; }
  void Poll(std::vector<Moved>* moved);
  int64_t pending() const;
  absl::Time NextEvent() const;

  // Sleeps until a message, a move's end, or `deadline`, of which NextEvent is
  // part. Another thread may Begin, Cancel and Promote meanwhile.
  void Wait(absl::Time deadline) { io_->Sleep(deadline); }

  // Of what moved between memory and that tier, which is no device.
  IoPathStats stats(TierId far) const;
  // Bytes along an edge that its transport counts with others, or not at all.
  void AddMoved(Edge edge, int64_t bytes) { OnEdge(edge).moved_bytes += bytes; }
  int64_t moved(Edge edge) const;
  // Of late moves to and from a device, until they are released.
  void AddQuarantined(int64_t bytes) { quarantined_bytes_ += bytes; }
  int64_t quarantined_bytes() const { return quarantined_bytes_; }
  // How long queues were held up by an edge so far.
  void AddBlocked(Edge edge, absl::Duration time) {
    OnEdge(edge).blocked += time;
  }
  absl::Duration blocked(Edge edge) const;
  EngineInfo engine_info() const { return io_->engine_info(); }
  // As the disks' engine has it.
  bool UnregisterArena(absl::Span<std::byte> part) {
    return io_->UnregisterArena(part);
  }
  // Leaves behind what moves that never ended may still use.
  void Abandon() { io_->Abandon(); }

 private:
  struct EdgeCounts {
    Edge edge;
    absl::Duration blocked;
    int64_t moved_bytes = 0;
  };

  Transport& on(Edge edge);
  Transport& ForPoll(Edge edge) {
    needs_poll_ = true;
    return on(edge);
  }
  EdgeCounts& OnEdge(Edge edge);
  const EdgeCounts* Find(Edge edge) const;

  const std::unique_ptr<IoPaths> io_;
  const std::unique_ptr<CopyTransport> copies_;
  const std::vector<std::unique_ptr<Transport>> devices_;
  DiskTransport disks_;
  std::vector<Transport*> transports_;  // all of the above
  std::vector<EdgeCounts> counts_;      // few
  int64_t quarantined_bytes_ = 0;       // of the devices'
  bool needs_poll_ = false;
};

}  // namespace terrace
