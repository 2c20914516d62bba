#include "runtime/optimizer/apart_check.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/bytes.h"
#include "runtime/base/memory_overlap.h"

namespace terrace {

absl::Status ApartCheck::Check(absl::Span<const ParameterSpec> specs,
                               absl::Span<const ParameterData> parameters) {
  known_.resize(specs.size(), nullptr);
  bool changed = false;
  for (size_t i = 0; i < specs.size(); ++i) {
    changed = changed || (parameters[i].gradient != nullptr &&
                          parameters[i].parameter != known_[i]);
  }
  if (!changed) return absl::OkStatus();
  std::vector<MemoryRange> ranges(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    if (parameters[i].gradient == nullptr) continue;
    ranges[i] = {parameters[i].parameter,
                 specs[i].count * DTypeBytes(specs[i].dtype)};
  }
  if (const auto overlap = FindOverlap(ranges)) {
    const auto [a, b] = *overlap;
    return absl::InvalidArgumentError(absl::StrCat(
        "parameters ", a, " ('", specs[a].name, "') and ", b, " ('",
        specs[b].name, "') overlap in memory; give one of them"));
  }
  for (size_t i = 0; i < specs.size(); ++i) known_[i] = ranges[i].start;
  return absl::OkStatus();
}

}  // namespace terrace
