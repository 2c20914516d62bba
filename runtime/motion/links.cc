#include "runtime/motion/links.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "tiers/disk/disk_transport.h"

namespace terrace {

Links::Links(std::unique_ptr<IoPaths> io, int tiers)
    : io_(std::move(io)),
      tiers_(tiers),
      edges_(static_cast<size_t>(tiers) * static_cast<size_t>(tiers)) {
  transports_.push_back(std::make_unique<DiskTransport>(*io_));
  for (TierId disk = kDramTier + 1; disk < tiers; ++disk) {
    edges_[static_cast<size_t>(kDramTier * tiers + disk)] =
        edges_[static_cast<size_t>(disk * tiers + kDramTier)] =
            transports_.front().get();
  }
}

Transport& Links::on(Edge edge) {
  Transport* const transport =
      edges_[static_cast<size_t>(edge.from * tiers_ + edge.to)];
  TERRACE_CHECK(transport != nullptr);
  return *transport;
}

void Links::Poll(std::vector<Moved>* moved) {
  for (const auto& transport : transports_) transport->Poll(moved);
}

int64_t Links::pending() const {
  int64_t pending = 0;
  for (const auto& transport : transports_) pending += transport->pending();
  return pending;
}

absl::Time Links::NextEvent() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& transport : transports_) {
    next = std::min(next, transport->NextEvent());
  }
  return next;
}

}  // namespace terrace
