// The tiers that a runtime keeps tensors on, as its user names them: in C++, in
// Python, on a command line and in JSON by one text.
//
//   dram=8GiB                      memory; of one node: dram:node1=8GiB
//   nvme:/mnt/nvme0=500GiB         a directory, file or block device
//   far:node2=64GiB                memory of a node without processors, as CXL
//   pmem:/mnt/pmem0=100GiB         persistent memory
//   hbm:cuda:0=10GiB               a GPU's
//
// Values; thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace terrace {

enum class TierKind : uint8_t { kHbm, kDram, kFar, kPmem, kDisk };

// "hbm", "dram", "far", "pmem", "nvme".
const char* TierKindName(TierKind kind);

struct TierSpec {
  TierKind kind = TierKind::kDram;
  // A device ("cuda:0"), a node ("node1"; of dram: "" for the nearest) or a
  // path.
  std::string place;
  // At most, headers included. 0: all that there is, of far, pmem and nvme.
  int64_t budget_bytes = 0;

  friend bool operator==(const TierSpec&, const TierSpec&) = default;
};

// Without a budget what follows the last '=' is none: a path that contains one
// is named with its budget. InvalidArgument, which names the text: no such
// kind, no or a wrong place, no budget of dram or hbm, or one that is no count
// of bytes.
absl::StatusOr<TierSpec> ParseTier(absl::string_view text);

// InvalidArgument: a tier that no text names, put together by a program.
absl::Status CheckTier(const TierSpec& tier);

// What ParseTier takes, with the budget in its largest whole unit.
std::string TierText(const TierSpec& tier);

// The number of a place that is a node ("node12"); -1: it is none.
int NodeOf(const TierSpec& tier);

// "67108864", "64MiB", "1.5GB"; KB, MB, GB and TB are powers of 1000. Less than
// 2^62. InvalidArgument: anything else.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);

}  // namespace terrace
