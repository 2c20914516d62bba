#include "examples/train_gpt/peak_memory.h"

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace train_gpt {
namespace {

// The value of a line "name:   123 kB", in bytes.
absl::StatusOr<int64_t> ReadKilobytes(const char* path, const char* name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    absl::string_view rest = line;
    int64_t kilobytes = 0;
    if (absl::ConsumePrefix(&rest, name) && absl::ConsumePrefix(&rest, ":") &&
        absl::ConsumeSuffix(&rest, " kB") &&
        absl::SimpleAtoi(rest, &kilobytes)) {
      return kilobytes * 1024;
    }
  }
  return absl::UnavailableError(absl::StrCat("no ", name, " in ", path));
}

}  // namespace

absl::StatusOr<int64_t> PeakResidentBytes() {
  return ReadKilobytes("/proc/self/status", "VmHWM");
}

}  // namespace train_gpt
