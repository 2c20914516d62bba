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
  // `io`, which outlives the transport, has path k for disk k.
  explicit DiskTransport(IoPaths& io) : io_(io) {}

  void Begin(const Move& move) override;
  void Cancel(Edge edge, uint64_t tag) override;
  void Promote(Edge edge, uint64_t tag, IoClass io_class) override;
  void Poll(std::vector<Moved>* moved) override;
  int64_t pending() const override { return io_.pending(); }
  absl::Time NextEvent() const override { return io_.NextEvent(); }

 private:
  IoPaths& io_;
  std::vector<Completion> completions_;
};

}  // namespace terrace
