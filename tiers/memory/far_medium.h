// Memory of another node than the one that the processors work in: CXL, or
// memory of another socket. All of it lies on that node, or it is refused.
//
// It is taken at the start, or as it grows. Thread-safe, as Medium is.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
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
  // It begins with nothing, and grows to its budget.
  bool grows = false;
  // It may be kept beyond the process.
  bool outlives = false;
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
  // One that grows, and that another process has left with `used_bytes` in it.
  // InvalidArgument: the memory is of another size; others as HostArena has
  // them.
  static absl::StatusOr<std::unique_ptr<FarMedium>> Reopen(
      const FarOptions& options, KeptMedium kept, int64_t used_bytes);
  // Of any memory, wherever it lies; it grows by what the arena may, which is
  // `growth_bytes`.
  FarMedium(std::string name, std::unique_ptr<HostArena> arena,
            int64_t growth_bytes = 0);
  // Memory that could outlive it is emptied.
  ~FarMedium() override;

  const std::string& name() const override { return name_; }
  int64_t size_bytes() const override { return size_bytes_; }
  int64_t most_bytes() const override { return most_bytes_; }
  // By what is better, or else by the least; whole blocks.
  absl::StatusOr<int64_t> Grow(const Growth& growth) override;
  absl::Status Read(int64_t offset, absl::Span<std::byte> to) override;
  absl::Status Write(int64_t offset, absl::Span<const std::byte> from) override;
  std::optional<KeptMedium> Keep() const override;
  absl::Status Remove() override;

 private:
  const std::string name_;
  std::unique_ptr<HostArena> arena_;  // until Remove
  // These are what others read while it grows.
  std::byte* const begin_;
  std::atomic<int64_t> size_bytes_;
  const int64_t most_bytes_;
  const bool grows_;
};

}  // namespace terrace
