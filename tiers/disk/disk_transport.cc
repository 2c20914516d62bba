#include "tiers/disk/disk_transport.h"

#include <utility>

#include "base/check.h"

namespace terrace {

namespace {

int PathOf(Edge edge) { return FarEnd(edge).number; }

}  // namespace

void DiskTransport::Begin(const Move& move) {
  const bool reads = IsFromFar(move.edge);
  TERRACE_CHECK(IsMemory(NearEnd(move.edge)) &&
                FarEnd(move.edge).kind == TierKind::kDisk);
  IoTransfer transfer;
  transfer.direction = reads ? IoDirection::kRead : IoDirection::kWrite;
  transfer.io_class = move.io_class;
  transfer.data = move.data;
  transfer.offset = reads ? move.from.offset : move.to.offset;
  transfer.size_bytes = reads ? move.to.size_bytes : move.from.size_bytes;
  transfer.tag = move.tag;
  transfer.timeout = move.timeout;
  io_.Enqueue(PathOf(move.edge), transfer);
}

void DiskTransport::Cancel(Edge edge, uint64_t tag) {
  io_.Cancel(PathOf(edge), tag);
}

void DiskTransport::Promote(Edge edge, uint64_t tag, IoClass io_class) {
  io_.Promote(PathOf(edge), tag, io_class);
}

void DiskTransport::Poll(std::vector<Moved>* moved) {
  completions_.clear();
  io_.Poll(&completions_);
  for (Completion& each : completions_) {
    moved->push_back(
        {each.tag, std::move(each.status), each.quarantined, each.released});
  }
}

}  // namespace terrace
