// What the machine is made of, by hwloc. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace {

struct NumaNode {
  int os_index = 0;
  int64_t memory_bytes = 0;
  std::vector<int> cpus;  // empty: a memory-only node (CXL)
};

struct Topology {
  std::vector<int> cpus;  // os ids that this process may run on; one per core
                          // first, then their siblings
  int cores = 0;          // physical ones among them
  std::vector<NumaNode> nodes;
};

absl::StatusOr<Topology> ReadTopology();

}  // namespace terrace
