#include "tiers/memory/far_medium.h"

#include <fcntl.h>

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/io_fault.h"
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
  if (options.grows) arena.growth_bytes = std::exchange(arena.size_bytes, 0);
  arena.huge_pages = options.huge_pages;
  arena.numa_node = options.node;
  arena.shared = options.outlives;
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<HostArena> memory,
                           HostArena::Create(arena));
  return std::make_unique<FarMedium>(NodeName(options.node), std::move(memory),
                                     arena.growth_bytes);
}

absl::StatusOr<std::unique_ptr<FarMedium>> FarMedium::Reopen(
    const FarOptions& options, KeptMedium kept, int64_t used_bytes) {
  const int64_t growth = RoundDown(options.budget_bytes, kBlockBytes) -
                         RoundUp(used_bytes, kBlockBytes);
  if (used_bytes < 0 || growth < 0) {
    return absl::InvalidArgumentError(absl::StrCat(NodeName(options.node), ": ",
                                                   used_bytes, " bytes of ",
                                                   options.budget_bytes));
  }
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<HostArena> memory,
                           HostArena::Reopen({.size_bytes = used_bytes,
                                              .growth_bytes = growth,
                                              .huge_pages = options.huge_pages,
                                              .numa_node = options.node,
                                              .shared = true},
                                             std::move(kept.file)));
  // What it had grown by, and nothing lies in.
  if (growth > 0) {
    fallocate(memory->memory_file().get(),
              FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(memory->bytes().size()), growth);
  }
  return std::make_unique<FarMedium>(NodeName(options.node), std::move(memory),
                                     growth);
}

FarMedium::FarMedium(std::string name, std::unique_ptr<HostArena> arena,
                     int64_t growth_bytes)
    : name_(std::move(name)),
      arena_(std::move(arena)),
      begin_(arena_->bytes().data()),
      size_bytes_(static_cast<int64_t>(arena_->bytes().size())),
      most_bytes_(size_bytes_ + growth_bytes),
      grows_(growth_bytes > 0) {}

absl::StatusOr<int64_t> FarMedium::Grow(const Growth& growth) {
  int64_t bytes = growth.bytes;
  absl::Status grown = arena_->Grow(bytes);
  if (!grown.ok() && growth.least_bytes < bytes) {
    bytes = growth.least_bytes;
    grown = arena_->Grow(bytes);
  }
  if (!grown.ok()) {
    return Reworded(
        grown, absl::StrCat(name_, ": ", absl::string_view(grown.message())));
  }
  size_bytes_ += bytes;
  return bytes;
}

absl::Status FarMedium::Read(int64_t offset, absl::Span<std::byte> to) {
  TERRACE_CHECK(offset >= 0 &&
                offset <= size_bytes() - static_cast<int64_t>(to.size()));
  if (to.empty()) return absl::OkStatus();
  std::memcpy(to.data(), begin_ + offset, to.size());
  return absl::OkStatus();
}

absl::Status FarMedium::Write(int64_t offset,
                              absl::Span<const std::byte> from) {
  TERRACE_CHECK(offset >= 0 &&
                offset <= size_bytes() - static_cast<int64_t>(from.size()));
  if (from.empty()) return absl::OkStatus();
  std::memcpy(begin_ + offset, from.data(), from.size());
  return absl::OkStatus();
}

FarMedium::~FarMedium() {
  if (arena_ != nullptr) arena_->Empty();
}

std::optional<KeptMedium> FarMedium::Keep() const {
  KeptMedium kept{.file = arena_->memory_file().Share()};
  if (!kept.file.ok()) return std::nullopt;
  return kept;
}

// One of a process alone goes with the process's runtime: nobody waits for its
// pages.
absl::Status FarMedium::Remove() {
  if (!grows_ && !arena_->memory_file().ok()) return absl::OkStatus();
  arena_->Empty();
  arena_ = nullptr;
  return absl::OkStatus();
}

}  // namespace terrace
