#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "terrace/tier.h"

namespace terrace {
namespace {

struct Unit {
  const char* name;
  double bytes;
};
constexpr Unit kUnits[] = {
    {"TiB", 1099511627776.0},
    {"GiB", 1073741824.0},
    {"MiB", 1048576.0},
    {"KiB", 1024.0},
    {"TB", 1e12},
    {"GB", 1e9},
    {"MB", 1e6},
    {"KB", 1e3},
    {"B", 1.0},
};
constexpr int kBinaryUnits = 4;

// No sum of two such counts overflows.
constexpr int64_t kMostBytes = 4'600'000'000'000'000'000;

constexpr std::pair<const char*, TierKind> kKinds[] = {
    {"hbm", TierKind::kHbm},   {"dram", TierKind::kDram},
    {"far", TierKind::kFar},   {"pmem", TierKind::kPmem},
    {"nvme", TierKind::kDisk},
};

absl::Status Wrong(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("tier '", text, "': ", why,
                   "; such as dram=8GiB or nvme:/mnt/nvme0=500GiB"));
}

bool IsNumber(absl::string_view text) {
  int number = 0;
  return absl::SimpleAtoi(text, &number) && number >= 0 &&
         absl::StrCat(number) == text;
}

// What is wrong with a tier's place; empty: nothing.
std::string FaultOfPlace(const TierSpec& tier) {
  switch (tier.kind) {
    case TierKind::kHbm:
      if (absl::StartsWith(tier.place, "cuda:") &&
          IsNumber(absl::StripPrefix(tier.place, "cuda:"))) {
        return "";
      }
      return "its place is a device, cuda:0";
    case TierKind::kDram:
      if (tier.place.empty() || NodeOf(tier) >= 0) return "";
      return "its place is a memory node, node1, or none";
    case TierKind::kFar:
      if (NodeOf(tier) >= 0) return "";
      return "its place is a memory node, node1";
    case TierKind::kPmem:
    case TierKind::kDisk:
      break;
  }
  return tier.place.empty() ? "its place is a path" : "";
}

// What is wrong with a tier; empty: nothing.
std::string FaultOf(const TierSpec& tier) {
  if (std::string fault = FaultOfPlace(tier); !fault.empty()) return fault;
  if (tier.budget_bytes < 0 || tier.budget_bytes > kMostBytes) {
    return absl::StrCat("a budget of ", tier.budget_bytes, " bytes");
  }
  if (tier.budget_bytes == 0 &&
      (tier.kind == TierKind::kDram || tier.kind == TierKind::kHbm)) {
    return absl::StrCat(TierKindName(tier.kind), " needs a budget");
  }
  return "";
}

}  // namespace

const char* TierKindName(TierKind kind) {
  for (const auto& [name, each] : kKinds) {
    if (each == kind) return name;
  }
  return "";
}

absl::StatusOr<TierSpec> ParseTier(absl::string_view text) {
  TierSpec tier;
  absl::string_view rest = text;
  if (const size_t at = text.rfind('='); at != absl::string_view::npos) {
    const absl::StatusOr<int64_t> budget = ParseBytes(text.substr(at + 1));
    if (!budget.ok()) {
      return Wrong(text, absl::StrCat("its budget is ", text.substr(at + 1),
                                      ", which is no count of bytes"));
    }
    tier.budget_bytes = *budget;
    rest = text.substr(0, at);
  }
  const size_t colon = rest.find(':');
  const absl::string_view kind = rest.substr(0, colon);
  if (colon != absl::string_view::npos) {
    tier.place = std::string(rest.substr(colon + 1));
  }
  bool is_known = false;
  for (const auto& [name, each] : kKinds) {
    if (kind != name) continue;
    tier.kind = each;
    is_known = true;
  }
  if (!is_known) {
    return Wrong(text, absl::StrCat("kinds are hbm, dram, far, pmem and nvme, ",
                                    "not '", kind, "'"));
  }
  if (const std::string fault = FaultOf(tier); !fault.empty()) {
    return Wrong(text, fault);
  }
  return tier;
}

absl::Status CheckTier(const TierSpec& tier) {
  const std::string fault = FaultOf(tier);
  return fault.empty() ? absl::OkStatus() : Wrong(TierText(tier), fault);
}

std::string TierText(const TierSpec& tier) {
  std::string text = TierKindName(tier.kind);
  if (!tier.place.empty()) absl::StrAppend(&text, ":", tier.place);
  if (tier.budget_bytes == 0) return text;
  for (int i = 0; i < kBinaryUnits; ++i) {
    const auto unit = static_cast<int64_t>(kUnits[i].bytes);
    if (tier.budget_bytes % unit != 0) continue;
    return absl::StrCat(text, "=", tier.budget_bytes / unit, kUnits[i].name);
  }
  return absl::StrCat(text, "=", tier.budget_bytes);
}

int NodeOf(const TierSpec& tier) {
  absl::string_view number = tier.place;
  int node = -1;
  if (!absl::ConsumePrefix(&number, "node") || !IsNumber(number)) return -1;
  return absl::SimpleAtoi(number, &node) ? node : -1;
}

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) {
  int64_t exact = 0;
  if (absl::SimpleAtoi(text, &exact) && exact > 0 && exact <= kMostBytes) {
    return exact;
  }
  absl::string_view digits = text;
  double factor = 1.0;
  for (const Unit& unit : kUnits) {
    if (!absl::EndsWithIgnoreCase(digits, unit.name)) continue;
    digits.remove_suffix(absl::string_view(unit.name).size());
    factor = unit.bytes;
    break;
  }
  double number = 0;
  if (absl::SimpleAtod(digits, &number) && number > 0 &&
      number * factor >= 1.0 &&
      number * factor <= static_cast<double>(kMostBytes)) {
    return static_cast<int64_t>(std::llround(number * factor));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is no count of bytes such as 67108864, 64MiB or 1GB"));
}

}  // namespace terrace
