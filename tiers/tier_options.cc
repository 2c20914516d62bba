#include "tiers/tier_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

std::vector<TierSpec> FromShortForms(const Options& options) {
  std::vector<TierSpec> tiers;
  TierSpec& memory = tiers.emplace_back();
  memory.budget_bytes = options.host_budget_bytes;
  if (options.numa_node.has_value()) {
    memory.place = absl::StrCat("node", *options.numa_node);
  }
  for (const std::string& path : options.paths) {
    tiers.push_back({.kind = TierKind::kDisk, .place = path});
  }
  return tiers;
}

absl::Status CheckAlone(const Options& options) {
  const char* const other = options.host_budget_bytes != 0 ? "host_budget_bytes"
                            : !options.paths.empty()       ? "paths"
                            : options.memory_paths != 0    ? "memory_paths"
                            : options.numa_node.has_value() ? "numa_node"
                                                            : nullptr;
  if (other == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tiers and ", other, " together"));
}

// At least one tier of memory; where there are several, each is of a node.
absl::Status CheckWorking(const std::vector<TierSpec>& tiers) {
  std::vector<const TierSpec*> memories;
  for (const TierSpec& tier : tiers) {
    if (tier.kind != TierKind::kDram) continue;
    for (const TierSpec* const other : memories) {
      if (!tier.place.empty() && !other->place.empty() &&
          tier.place != other->place) {
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat("tiers '", TierText(*other), "' and '", TierText(tier),
                       "': each of several memories has a node of its own"));
    }
    memories.push_back(&tier);
  }
  if (!memories.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "no tier of memory, such as dram=8GiB, is named");
}

// Memory first: a device's is above it, all others are below.
int RankOf(const TierSpec& tier) {
  return tier.kind == TierKind::kDram ? -1 : static_cast<int>(tier.kind);
}

absl::Status CheckPlaces(const std::vector<TierSpec>& tiers) {
  for (auto tier = tiers.begin(); tier != tiers.end(); ++tier) {
    if (tier->kind == TierKind::kDram) continue;
    if (tier->place.empty()) {
      return absl::InvalidArgumentError("a path is empty");
    }
    const bool is_twice = std::any_of(
        tiers.begin(), tier,
        [&](const TierSpec& other) { return other.place == tier->place; });
    if (is_twice) {
      return absl::InvalidArgumentError(
          absl::StrCat(tier->kind == TierKind::kFar ? "memory " : "path ", "'",
                       tier->place, "' is named twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<TierSpec>> TiersOf(const Options& options) {
  std::vector<TierSpec> tiers = options.tiers;
  if (!tiers.empty()) {
    TERRACE_RETURN_IF_ERROR(CheckAlone(options));
    for (const TierSpec& tier : tiers) {
      TERRACE_RETURN_IF_ERROR(CheckTier(tier));
    }
  } else {
    if (options.numa_node.value_or(0) < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("memory node ", *options.numa_node));
    }
    tiers = FromShortForms(options);
  }
  TERRACE_RETURN_IF_ERROR(CheckWorking(tiers));
  std::stable_sort(tiers.begin(), tiers.end(),
                   [](const TierSpec& a, const TierSpec& b) {
                     return RankOf(a) < RankOf(b);
                   });
  for (const TierSpec& tier : tiers) {
    if (tier.kind != TierKind::kDram ||
        tier.budget_bytes >= 3 * ResidentBytes(1)) {
      continue;
    }
    const bool is_tier = !options.tiers.empty();
    return absl::InvalidArgumentError(absl::StrCat(
        is_tier ? absl::StrCat("tier '", TierText(tier), "': ") : "",
        "a host budget of ", tier.budget_bytes, " bytes; the least is ",
        3 * ResidentBytes(1)));
  }
  TERRACE_RETURN_IF_ERROR(CheckPlaces(tiers));
  return tiers;
}

}  // namespace terrace
