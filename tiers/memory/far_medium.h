// Memory of another node than the one that the processors work in: CXL, or
// memory of another socket. All of it lies on that node, or it is refused.
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "terrace/options.h"
#include "tiers/medium.h"
#include "tiers/memory/host_arena.h"
#include "tiers/memory/topology.h"

namespace terrace {

struct FarOptions {
  int node = -1;
  int64_t budget_bytes = 0;  // 0: all that the node could still give
  HugePages huge_pages = HugePages::kPreferred;
  // The node that memory itself comes from; -1: the kernel chooses.
  int near_node = -1;
};

// InvalidArgument: it is the near node, or the only one. Unavailable: no such
// node (the message names those that there are).
absl::Status CheckFarNode(const Topology& topology, const FarOptions& options);

class FarMedium final : public Medium {
 public:
  // As CheckFarNode; ResourceExhausted: the node has less to give than that, in
  // whole or now. Unavailable: its pages lie elsewhere.
  static absl::StatusOr<std::unique_ptr<FarMedium>> Open(
      const FarOptions& options);
  // Of any memory, wherever it lies.
  FarMedium(std::string name, std::unique_ptr<HostArena> arena);

  const std::string& name() const override { return name_; }
  int64_t size_bytes() const override {
    return static_cast<int64_t>(arena_->bytes().size());
  }
  absl::Status Read(int64_t offset, absl::Span<std::byte> to) override;
  absl::Status Write(int64_t offset, absl::Span<const std::byte> from) override;

 private:
  const std::string name_;
  const std::unique_ptr<HostArena> arena_;
};

}  // namespace terrace
