#include "optimizer/step/apart_check.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/memory_overlap.h"

namespace terrace {

absl::Status ApartCheck::Check(absl::Span<const ParameterSpec> specs,
                               absl::Span<const ParameterData> parameters) {
  known_.resize(specs.size());
  bool changed = false;
  std::vector<Place> places(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    if (parameters[i].gradient == nullptr) continue;
    places[i] = {parameters[i].parameter, parameters[i].device};
    changed = changed || places[i] != known_[i];
  }
  if (!changed) return absl::OkStatus();
  std::map<const Device*, std::vector<MemoryRange>> of_device;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (parameters[i].gradient == nullptr) continue;
    std::vector<MemoryRange>& ranges = of_device[places[i].device];
    ranges.resize(specs.size());  // the others are empty
    ranges[i] = {places[i].start, specs[i].count * DTypeBytes(specs[i].dtype)};
  }
  for (const auto& [device, ranges] : of_device) {
    if (const auto overlap = FindOverlap(ranges)) {
      const auto [a, b] = *overlap;
      return absl::InvalidArgumentError(absl::StrCat(
          "parameters ", a, " ('", specs[a].name, "') and ", b, " ('",
          specs[b].name, "') overlap in memory; give one of them"));
    }
  }
  known_ = std::move(places);
  return absl::OkStatus();
}

}  // namespace terrace
