#include "runtime/motion/links.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace terrace {

Links::Links(std::unique_ptr<IoPaths> io, std::unique_ptr<CopyTransport> copies,
             std::vector<std::unique_ptr<Transport>> devices)
    : io_(std::move(io)),
      copies_(std::move(copies)),
      devices_(std::move(devices)),
      disks_(*io_),
      transports_{copies_.get(), &disks_} {
  for (const auto& device : devices_) transports_.push_back(device.get());
}

Transport& Links::on(Edge edge) {
  TERRACE_CHECK(IsMemory(NearEnd(edge)));
  const TierId far = FarEnd(edge);
  if (far.kind == TierKind::kDisk) return disks_;
  if (!IsDevice(far)) return *copies_;
  return *devices_.at(static_cast<size_t>(far.number));
}

Links::EdgeCounts& Links::OnEdge(Edge edge) {
  const EdgeCounts* const found = Find(edge);
  if (found != nullptr) return const_cast<EdgeCounts&>(*found);
  return counts_.emplace_back(EdgeCounts{.edge = edge});
}

const Links::EdgeCounts* Links::Find(Edge edge) const {
  for (const EdgeCounts& each : counts_) {
    if (each.edge == edge) return &each;
  }
  return nullptr;
}

int64_t Links::moved(Edge edge) const {
  const EdgeCounts* const found = Find(edge);
  return found == nullptr ? 0 : found->moved_bytes;
}

absl::Duration Links::blocked(Edge edge) const {
  const EdgeCounts* const found = Find(edge);
  return found == nullptr ? absl::ZeroDuration() : found->blocked;
}

IoPathStats Links::stats(TierId far) const {
  if (far.kind == TierKind::kDisk) return io_->stats(far.number);
  return copies_->stats(far);
}

void Links::Poll(std::vector<Moved>* moved) {
  needs_poll_ = false;
  for (Transport* const transport : transports_) transport->Poll(moved);
}

int64_t Links::pending() const {
  int64_t pending = 0;
  for (Transport* const transport : transports_) {
    pending += transport->pending();
  }
  return pending;
}

absl::Time Links::NextEvent() const {
  absl::Time next = absl::InfiniteFuture();
  for (Transport* const transport : transports_) {
    next = std::min(next, transport->NextEvent());
  }
  return next;
}

}  // namespace terrace
