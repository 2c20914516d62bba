// Amounts of bytes that tests count in.
#pragma once

#include <cstdint>

namespace terrace {

inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr int64_t kGiB = int64_t{1} << 30;

}  // namespace terrace
