#include "tiers/memory/topology.h"

#include <hwloc.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/bytes.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology_t topology) const {
    const ForkPause pause;
    hwloc_topology_destroy(topology);
  }
};
using LoadedTopology =
    std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, DestroyTopology>;

struct FreeBitmap {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap =
    std::unique_ptr<std::remove_pointer_t<hwloc_bitmap_t>, FreeBitmap>;

// hwloc has a lock of its own, which a child that is made meanwhile would wait
// for for ever.
//
// On a synthetic or imported topology calls succeed and do nothing, so only
// the machine's own will do.
absl::StatusOr<LoadedTopology> Load() {
  // hwloc reads these by itself, and takes the word of the last of them that
  // another machine's topology is this one's.
  for (const char* const name : {"HWLOC_SYNTHETIC", "HWLOC_XMLFILE",
                                 "HWLOC_FSROOT", "HWLOC_THISSYSTEM"}) {
    if (std::getenv(name) == nullptr) continue;
    return absl::UnavailableError(absl::StrCat(
        "hwloc's topology may not be this machine's: unset ", name));
  }
  hwloc_topology_t raw = nullptr;
  bool is_read = false;
  {
    const ForkPause pause;
    if (hwloc_topology_init(&raw) != 0) {
      return absl::UnavailableError("hwloc cannot be initialized");
    }
    is_read = hwloc_topology_load(raw) == 0;
  }
  LoadedTopology topology(raw);
  if (!is_read) return absl::UnavailableError("hwloc cannot read the machine");
  if (!hwloc_topology_is_thissystem(raw)) {
    return absl::UnavailableError("hwloc's topology is not this machine's");
  }
  return topology;
}

// "0-3,8": as the kernel lists processors and nodes.
std::vector<int> ParseList(const std::string& text) {
  std::vector<int> numbers;
  for (const auto range : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<std::string, std::string> ends =
        absl::StrSplit(range, absl::MaxSplits('-', 1));
    int first = 0;
    if (!absl::SimpleAtoi(ends.first, &first)) continue;
    int last = first;
    if (!ends.second.empty() && !absl::SimpleAtoi(ends.second, &last)) continue;
    for (int each = first; each <= last; ++each) numbers.push_back(each);
  }
  return numbers;
}

std::vector<int> Indices(hwloc_const_bitmap_t bitmap) {
  std::vector<int> indices;
  if (bitmap == nullptr || hwloc_bitmap_weight(bitmap) < 0) return indices;
  for (int i = hwloc_bitmap_first(bitmap); i >= 0;
       i = hwloc_bitmap_next(bitmap, i)) {
    indices.push_back(i);
  }
  return indices;
}

// By the kernel's list, not by hwloc's cpuset: where the firmware names the
// initiators of a memory-only node, hwloc gives it their processors.
std::vector<int> CpusOfNode(hwloc_obj_t node) {
  std::ifstream file(absl::StrCat("/sys/devices/system/node/node",
                                  node->os_index, "/cpulist"));
  std::string line;
  if (!file) return Indices(node->cpuset);
  std::getline(file, line);
  return ParseList(line);
}

// The nodes in a list of the kernel's; with none where there is no such list.
std::vector<int> NodesThat(const std::string& have) {
  std::ifstream file(absl::StrCat("/sys/devices/system/node/", have));
  std::string line;
  std::getline(file, line);
  return ParseList(line);
}

// The processors that any thread of this process may run on now.
absl::StatusOr<Bitmap> AllowedCpus(hwloc_topology_t topology) {
  Bitmap allowed(hwloc_bitmap_alloc());
  if (hwloc_get_cpubind(topology, allowed.get(), HWLOC_CPUBIND_PROCESS) != 0 ||
      hwloc_bitmap_iszero(allowed.get())) {
    hwloc_bitmap_copy(allowed.get(),
                      hwloc_topology_get_allowed_cpuset(topology));
  }
  if (hwloc_bitmap_iszero(allowed.get())) {
    return absl::UnavailableError("hwloc names no processor to run on");
  }
  return allowed;
}

// One processor of each core first, then the second of each, and so on.
void ReadCores(hwloc_topology_t topology, hwloc_const_bitmap_t allowed,
               Topology* result) {
  std::vector<std::vector<int>> cores;
  std::set<int> in_cores;
  for (hwloc_obj_t core = nullptr;
       (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) !=
       nullptr;) {
    const Bitmap usable(hwloc_bitmap_alloc());
    hwloc_bitmap_and(usable.get(), core->cpuset, allowed);
    const std::vector<int> cpus = Indices(usable.get());
    if (!cpus.empty()) cores.push_back(cpus);
    in_cores.insert(cpus.begin(), cpus.end());
  }
  // Some virtual machines show no cores: each processor is one then.
  for (const int cpu : Indices(allowed)) {
    if (in_cores.count(cpu) == 0) cores.push_back({cpu});
  }
  result->cores = static_cast<int>(cores.size());
  size_t widest = 0;
  for (const auto& cpus : cores) widest = std::max(widest, cpus.size());
  for (size_t i = 0; i < widest; ++i) {
    for (const auto& cpus : cores) {
      if (i < cpus.size()) result->cpus.push_back(cpus[i]);
    }
  }
}

// Of the first `piece` bytes of each `stride`.
absl::StatusOr<std::vector<int>> FindNodes(absl::Span<const std::byte> area,
                                           size_t piece, size_t stride) {
  TERRACE_ASSIGN_OR_RETURN(const LoadedTopology topology, Load());
  const Bitmap all(hwloc_bitmap_alloc());
  const Bitmap nodes(hwloc_bitmap_alloc());
  for (size_t at = 0; at < area.size(); at += stride) {
    const absl::Span<const std::byte> part = area.subspan(at, piece);
    if (hwloc_get_area_memlocation(topology.get(), part.data(), part.size(),
                                   nodes.get(), HWLOC_MEMBIND_BYNODESET) != 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot find where pages lie: ", ErrnoName(errno)));
    }
    hwloc_bitmap_or(all.get(), all.get(), nodes.get());
  }
  return Indices(all.get());
}

}  // namespace

absl::StatusOr<Topology> ReadTopology() {
  TERRACE_ASSIGN_OR_RETURN(const LoadedTopology topology, Load());
  TERRACE_ASSIGN_OR_RETURN(const Bitmap allowed, AllowedCpus(topology.get()));
  Topology result;
  ReadCores(topology.get(), allowed.get(), &result);
  const std::vector<int> normal = NodesThat("has_normal_memory");
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology.get(), HWLOC_OBJ_NUMANODE,
                                          node)) != nullptr;) {
    result.nodes.push_back({.os_index = static_cast<int>(node->os_index),
                            .memory_bytes = static_cast<int64_t>(
                                node->attr->numanode.local_memory),
                            .cpus = CpusOfNode(node)});
    NumaNode& added = result.nodes.back();
    added.movable =
        !normal.empty() && !absl::c_linear_search(normal, added.os_index);
  }
  return result;
}

int NearestNode(const Topology& topology, absl::Span<const int> cpus) {
  if (topology.nodes.size() < 2 || cpus.empty()) return -1;
  for (const NumaNode& node : topology.nodes) {
    const auto is_near = [&node](int cpu) {
      return absl::c_linear_search(node.cpus, cpu);
    };
    if (absl::c_all_of(cpus, is_near)) return node.os_index;
  }
  return -1;
}

// "Node 0 MemFree:  7432404 kB"
absl::StatusOr<int64_t> AvailableNodeBytes(int node) {
  std::ifstream file(
      absl::StrCat("/sys/devices/system/node/node", node, "/meminfo"));
  bool has_free = false;
  int64_t sum = 0;
  for (std::string word; file >> word;) {
    const bool is_free = word == "MemFree:";
    int64_t kilobytes = 0;
    if ((is_free || word == "Active(file):" || word == "Inactive(file):" ||
         word == "SReclaimable:") &&
        file >> kilobytes) {
      sum += kilobytes * 1024;
      has_free = has_free || is_free;
    }
  }
  if (has_free) return sum;
  return absl::UnavailableError(
      absl::StrCat("the kernel does not say what memory node ", node, " has"));
}

absl::Status BindToNode(absl::Span<std::byte> area, int node, Binding binding) {
  TERRACE_ASSIGN_OR_RETURN(const LoadedTopology topology, Load());
  const hwloc_obj_t object =
      node < 0 ? nullptr
               : hwloc_get_numanode_obj_by_os_index(
                     topology.get(), static_cast<unsigned>(node));
  if (object == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        "this machine has no memory node ", node, "; it has ",
        absl::StrJoin(
            Indices(hwloc_topology_get_allowed_nodeset(topology.get())),
            ", ")));
  }
  const int strict = binding == Binding::kStrict ? HWLOC_MEMBIND_STRICT : 0;
  if (hwloc_set_area_membind(topology.get(), area.data(), area.size(),
                             object->nodeset, HWLOC_MEMBIND_BIND,
                             HWLOC_MEMBIND_BYNODESET | strict) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot bind ", area.size(),
                                               " bytes to memory node ", node,
                                               ": ", ErrnoName(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int>> FindNodes(absl::Span<const std::byte> area) {
  // hwloc keeps 12 bytes for each page that is asked about.
  constexpr size_t kPieceBytes = 64 << 20;
  return FindNodes(area, kPieceBytes, kPieceBytes);
}

absl::StatusOr<std::vector<int>> SampleNodes(absl::Span<const std::byte> area) {
  constexpr size_t kPages = 64;
  constexpr size_t kPageBytes = kBlockBytes;
  return FindNodes(
      area, kPageBytes,
      std::max(area.size() / kPages / kPageBytes, size_t{1}) * kPageBytes);
}

}  // namespace terrace
