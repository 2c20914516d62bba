#include "runtime/motion/links.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace terrace {

Links::Links(std::unique_ptr<IoPaths> io, std::unique_ptr<CopyTransport> copies,
             int mapped, int disks, std::unique_ptr<Transport> device)
    : io_(std::move(io)),
      copies_(std::move(copies)),
      first_disk_(kDramTier + 1 + mapped),
      tiers_(kWorkingTiers + mapped + disks),
      device_(std::move(device)),
      disks_(*io_, first_disk_),
      transports_{copies_.get(), &disks_},
      edges_(static_cast<size_t>(tiers_) * static_cast<size_t>(tiers_)),
      blocked_(edges_.size()),
      moved_(edges_.size()) {
  if (device_ != nullptr) transports_.push_back(device_.get());
  for (TierId other = kHbmTier; other < tiers_ + kHbmTier; ++other) {
    if (other == kDramTier) continue;
    Transport* const transport = other < kDramTier     ? device_.get()
                                 : other < first_disk_ ? transports_[0]
                                                       : transports_[1];
    edges_[IndexOf({kDramTier, other})] = transport;
    edges_[IndexOf({other, kDramTier})] = transport;
  }
}

Transport& Links::on(Edge edge) {
  Transport* const transport = edges_[IndexOf(edge)];
  TERRACE_CHECK(transport != nullptr);
  return *transport;
}

IoPathStats Links::stats(TierId resting) const {
  if (resting < first_disk_) return copies_->stats(resting);
  return io_->stats(resting - first_disk_);
}

void Links::Poll(std::vector<Moved>* moved) {
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
