#include <sys/mman.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "machine/facts.h"
#include "tiers/memory/host_arena.h"
#include "tiers/memory/process_memory.h"

namespace terrace {
namespace {

constexpr char kTransparent[] = "/sys/kernel/mm/transparent_hugepage";
constexpr char kPools[] = "/sys/kernel/mm/hugepages";
constexpr int64_t kArenaProbeBytes = 8 << 20;
constexpr int kLockCapability = 14;  // CAP_IPC_LOCK

// "24684092 kB" -> bytes.
int64_t Kilobytes(const std::string& text) {
  int64_t number = 0;
  absl::string_view digits = text;
  absl::ConsumeSuffix(&digits, " kB");
  return absl::SimpleAtoi(digits, &number) ? number * 1024 : -1;
}

int64_t LimitBytes(rlim_t limit) {
  return limit == RLIM_INFINITY ? kNoLimit : static_cast<int64_t>(limit);
}

void ReadPools(const PseudoFiles& files, MemoryReport* report) {
  for (const std::string& name : files.Names(kPools)) {
    absl::string_view size = name;
    int64_t kilobytes = 0;
    if (!absl::ConsumePrefix(&size, "hugepages-") ||
        !absl::ConsumeSuffix(&size, "kB") ||
        !absl::SimpleAtoi(size, &kilobytes)) {
      continue;
    }
    const std::string pool = absl::StrCat(kPools, "/", name, "/");
    report->pools.push_back(
        {.page_bytes = kilobytes * 1024,
         .total = files.Number(pool + "nr_hugepages"),
         .free = files.Number(pool + "free_hugepages"),
         .reserved = files.Number(pool + "resv_hugepages")});
  }
}

}  // namespace

void ReadMemory(const PseudoFiles& files, MemoryReport* report) {
  report->total_bytes = Kilobytes(files.Field("/proc/meminfo", "MemTotal"));
  report->swap_bytes = Kilobytes(files.Field("/proc/meminfo", "SwapTotal"));
  report->available_bytes = AvailableMemoryBytesUnder(
      files.root() + "/proc", files.root() + "/sys/fs/cgroup");
  if (report->available_bytes == INT64_MAX) report->available_bytes = -1;
  const std::string transparent = kTransparent;
  report->transparent = files.Choice(transparent + "/enabled");
  report->transparent_defrag = files.Choice(transparent + "/defrag");
  report->transparent_shared = files.Choice(transparent + "/shmem_enabled");
  report->huge_page_bytes = files.Number(transparent + "/hpage_pmd_size");
  ReadPools(files, report);
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
    report->locked_limit_bytes = LimitBytes(limit.rlim_cur);
    report->locked_hard_limit_bytes = LimitBytes(limit.rlim_max);
  }
  const std::string rights = files.Field("/proc/self/status", "CapEff");
  report->locked_limit_exempt =
      (std::strtoull(rights.c_str(), nullptr, 16) >> kLockCapability & 1) != 0;
}

double ProbeHugePageShare() {
  const auto arena = HostArena::Create({.size_bytes = kArenaProbeBytes});
  return arena.ok() ? (*arena)->huge_page_share() : -1;
}

}  // namespace terrace
