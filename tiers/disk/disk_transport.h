// Memory to and from disk paths: tier 1 + k is the group's path k.
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
  // `io` outlives the transport.
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
