// Amounts of memory: rounded, and as people read them. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace terrace {

// What direct I/O asks of offsets, lengths and addresses at most; a page of
// memory; so the grain of every place for a tensor.
inline constexpr int64_t kBlockBytes = 4096;
// Of which huge-paged memory is made, aligned to as much.
inline constexpr int64_t kHugePageBytes = int64_t{2} << 20;
// Before each tensor's bytes in a place of its own.
inline constexpr int64_t kTensorHeaderBytes = kBlockBytes;

// To a multiple of `unit`; neither is negative.
constexpr int64_t RoundDown(int64_t bytes, int64_t unit) {
  return bytes / unit * unit;
}
constexpr int64_t RoundUp(int64_t bytes, int64_t unit) {
  return RoundDown(bytes + unit - 1, unit);
}

// Three or four digits and a binary unit: "8 MiB", "1.5 GiB", "512 bytes".
// Below 0: "unknown"; INT64_MAX: "no limit".
std::string FormatBytes(int64_t bytes);

}  // namespace terrace
