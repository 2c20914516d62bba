// The tiers that a runtime keeps tensors on, as its user names them: in C++, in
// Python, on a command line and in JSON by one text.
//
//   dram=8GiB                      memory; of one node: dram:node1=8GiB
//   nvme:/mnt/nvme0=500GiB         a directory, file or block device
//   far:node2=64GiB                memory of a node without processors, as CXL
//   pmem:/mnt/pmem0=100GiB         persistent memory
//   hbm:cuda:0=10GiB               a GPU's
//
// A text may name what is not there. Runtime::Create then says so and what is:
// Unimplemented: this build lacks the kind; Unavailable: this machine lacks it.
//
// Values; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace terrace {

enum class TierKind : uint8_t { kHbm, kDram, kFar, kPmem, kDisk };

// "hbm", "dram", "far", "pmem", "nvme".
const char* TierKindName(TierKind kind);

class Device;  // opaque: base/device.h

struct TierSpec {
  TierKind kind = TierKind::kDram;
  // A device ("cuda:0"), a node ("node1"; of dram: "" for the nearest) or a
  // path.
  std::string place;
  // At most, headers included. 0: all that there is, of far, pmem and nvme.
  // Create refuses what cannot be held or used: less than it can work with
  // (InvalidArgument, with the least), more than the disk or device has
  // (InvalidArgument), more memory than there is (ResourceExhausted).
  int64_t budget_bytes = 0;
  // Of hbm: the device of that name, which the caller has opened, as an
  // accelerator of LibTorch's. Null: CUDA's is opened.
  std::shared_ptr<Device> device = nullptr;

  friend bool operator==(const TierSpec&, const TierSpec&) = default;
};

// What follows the last '=' is the budget, as ParseBytes has it, or "all" for
// all that there is, which a path that contains a '=' cannot do without.
// InvalidArgument, which names the text: no such kind, no or a wrong place, no
// budget of dram or hbm, or one that is no count of bytes.
absl::StatusOr<TierSpec> ParseTier(absl::string_view text);

// InvalidArgument: a tier that no text names, put together by a program.
absl::Status CheckTier(const TierSpec& tier);

// What ParseTier makes the same tier of, with the budget in its largest whole
// unit; of what CheckTier refuses some text that names it.
std::string TierText(const TierSpec& tier);

// Without the budget, as Stats and errors name it: "nvme:/mnt/nvme0".
std::string TierName(const TierSpec& tier);

// The number of a place that is a node ("node12"); -1: it is none.
int NodeOf(const TierSpec& tier);

// "67108864", "64MiB", "1.5 gb": decimal digits, with a fraction or without,
// and a unit in letters of any case: none, B, KB, MB, GB, TB (powers of 1000),
// KiB, MiB, GiB, TiB (of 1024); white space around each. Whole bytes, rounded
// down; at least 1, less than 2^62. InvalidArgument: anything else.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);

}  // namespace terrace
