#include "base/bytes.h"

#include <iterator>

#include "absl/strings/str_format.h"

namespace terrace {

std::string FormatBytes(int64_t bytes) {
  if (bytes < 0) return "unknown";
  if (bytes == INT64_MAX) return "no limit";
  static constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto number = static_cast<double>(bytes);
  size_t unit = 0;
  while (number >= 1024 && unit + 1 < std::size(kUnits)) {
    number /= 1024;
    ++unit;
  }
  if (number < 100 && unit > 0) {
    return absl::StrFormat("%.3g %s", number, kUnits[unit]);
  }
  return absl::StrFormat("%.0f %s", number, kUnits[unit]);
}

}  // namespace terrace
