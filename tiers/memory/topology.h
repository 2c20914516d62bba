// What the machine is made of, by hwloc: plain values, read when asked for, as
// capacities change. Each call loads the topology anew, some milliseconds.
// Thread-safe.
//
// Unavailable: hwloc cannot read the machine, or was told to read another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace terrace {

struct NumaNode {
  int os_index = 0;
  int64_t memory_bytes = 0;
  std::vector<int> cpus;  // empty: a memory-only node (CXL)
  // Its pages leave it when a device pins them for long: the kernel has it as
  // movable memory, until 'daxctl online-memory --no-movable'.
  bool movable = false;
};

struct Topology {
  std::vector<int> cpus;  // os ids that this process may run on; one per core
                          // first, then their siblings
  int cores = 0;          // physical ones among them
  std::vector<NumaNode> nodes;
};

absl::StatusOr<Topology> ReadTopology();

// The node that all of these processors are nearest to; -1: there is but one
// node, or they are of several.
int NearestNode(const Topology& topology, absl::Span<const int> cpus);

// What the kernel could still give of this node: free pages and file caches.
// Unavailable: it does not say.
absl::StatusOr<int64_t> AvailableNodeBytes(int node);

enum class Binding : uint8_t {
  kStrict,     // from this node or not at all
  kPreferred,  // from others once it is full
};

// Where the pages of `area`, page-aligned and not yet populated, will come
// from. Unavailable: no such node (the message names those that there are),
// or the kernel refuses.
absl::Status BindToNode(absl::Span<std::byte> area, int node, Binding binding);

// The nodes on which the populated pages of `area` lie (move_pages): of all
// its pages, or of 64 spread over it. Unavailable: the kernel does not say.
absl::StatusOr<std::vector<int>> FindNodes(absl::Span<const std::byte> area);
absl::StatusOr<std::vector<int>> SampleNodes(absl::Span<const std::byte> area);

}  // namespace terrace
