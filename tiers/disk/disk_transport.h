// Memory to and from disk paths.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "aio/io_paths.h"
#include "tiers/transport.h"

namespace terrace {

class DiskTransport final : public Transport {
 public:
  // `io`, which outlives the transport, has path k for tier first + k.
  DiskTransport(IoPaths& io, TierId first) : io_(io), first_(first) {}

  void Begin(const Move& move) override;
  void Cancel(Edge edge, uint64_t tag) override;
  void Promote(Edge edge, uint64_t tag, IoClass io_class) override;
  void Poll(std::vector<Moved>* moved) override;
  int64_t pending() const override { return io_.pending(); }
  absl::Time NextEvent() const override { return io_.NextEvent(); }

 private:
  // Of the end that is no memory.
  int PathOf(Edge edge) const;

  IoPaths& io_;
  const TierId first_;
  std::vector<Completion> completions_;
};

}  // namespace terrace
