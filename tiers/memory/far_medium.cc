#include "tiers/memory/far_medium.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

std::string NodeName(int node) { return absl::StrCat("node", node); }

// "node0 with 16 bytes, node2 with 32 bytes"
std::string NamesOf(const std::vector<NumaNode>& nodes) {
  return absl::StrJoin(nodes, ", ", [](std::string* out, const NumaNode& node) {
    absl::StrAppend(out, NodeName(node.os_index), " with ", node.memory_bytes,
                    " bytes");
  });
}

}  // namespace

absl::Status CheckFarNode(const Topology& topology, const FarOptions& options) {
  const std::string name = NodeName(options.node);
  for (const NumaNode& node : topology.nodes) {
    if (node.os_index != options.node) continue;
    if (topology.nodes.size() == 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is this machine's only memory node"));
    }
    if (options.node == options.near_node) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, " is the node that dram is on; far memory is ",
          "another's: this machine has ", NamesOf(topology.nodes)));
    }
    if (options.budget_bytes <= node.memory_bytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat(options.budget_bytes, " bytes of ", name, ", which has ",
                     node.memory_bytes));
  }
  return absl::UnavailableError(absl::StrCat(
      "there is no ", name, "; this machine has ", NamesOf(topology.nodes)));
}

absl::StatusOr<std::unique_ptr<FarMedium>> FarMedium::Open(
    const FarOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(const Topology topology, ReadTopology());
  TERRACE_RETURN_IF_ERROR(CheckFarNode(topology, options));
  HostArenaOptions arena;
  arena.size_bytes = options.budget_bytes;
  if (arena.size_bytes == 0) {
    TERRACE_ASSIGN_OR_RETURN(arena.size_bytes,
                             AvailableNodeBytes(options.node));
  }
  arena.size_bytes = RoundDown(arena.size_bytes, kBlockBytes);
  arena.huge_pages = options.huge_pages;
  arena.numa_node = options.node;
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<HostArena> memory,
                           HostArena::Create(arena));
  return std::make_unique<FarMedium>(NodeName(options.node), std::move(memory));
}

FarMedium::FarMedium(std::string name, std::unique_ptr<HostArena> arena)
    : name_(std::move(name)), arena_(std::move(arena)) {}

absl::Status FarMedium::Read(int64_t offset, absl::Span<std::byte> to) {
  TERRACE_CHECK(offset >= 0 &&
                offset <= size_bytes() - static_cast<int64_t>(to.size()));
  if (to.empty()) return absl::OkStatus();
  std::memcpy(to.data(), arena_->bytes().data() + offset, to.size());
  return absl::OkStatus();
}

absl::Status FarMedium::Write(int64_t offset,
                              absl::Span<const std::byte> from) {
  TERRACE_CHECK(offset >= 0 &&
                offset <= size_bytes() - static_cast<int64_t>(from.size()));
  if (from.empty()) return absl::OkStatus();
  std::memcpy(arena_->bytes().data() + offset, from.data(), from.size());
  return absl::OkStatus();
}

}  // namespace terrace
