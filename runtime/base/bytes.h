// Amounts of memory: rounded, and as people read them. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace terrace {

// To a multiple of `unit`; neither is negative.
constexpr int64_t RoundUp(int64_t bytes, int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Three or four digits and a binary unit: "8 MiB", "1.5 GiB", "512 bytes".
// Below 0: "unknown"; INT64_MAX: "no limit".
std::string FormatBytes(int64_t bytes);

}  // namespace terrace
