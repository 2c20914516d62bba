// Amounts of memory as people read them. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace terrace {

// Three or four digits and a binary unit: "8 MiB", "1.5 GiB", "512 bytes".
// Below 0: "unknown"; INT64_MAX: "no limit".
std::string FormatBytes(int64_t bytes);

}  // namespace terrace
