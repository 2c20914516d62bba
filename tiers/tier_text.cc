#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "terrace/tier.h"

namespace terrace {
namespace {

struct Unit {
  const char* name;
  int64_t bytes;
};
constexpr Unit kUnits[] = {
    {"TiB", int64_t{1} << 40},
    {"GiB", int64_t{1} << 30},
    {"MiB", int64_t{1} << 20},
    {"KiB", int64_t{1} << 10},
    {"TB", 1'000'000'000'000},
    {"GB", 1'000'000'000},
    {"MB", 1'000'000},
    {"KB", 1'000},
    {"B", 1},
    {"", 1},
};
constexpr int kBinaryUnits = 4;

// No sum of two such counts overflows.
constexpr int64_t kMostBytes = (int64_t{1} << 62) - 1;

// In place of a budget: all that there is.
constexpr absl::string_view kAll = "all";

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

// As LibTorch writes a device: its kind, and its number among these.
bool IsDeviceName(absl::string_view text) {
  const size_t colon = text.find(':');
  if (colon == 0 || colon == absl::string_view::npos) return false;
  const absl::string_view kind = text.substr(0, colon);
  const bool is_kind =
      std::all_of(kind.begin(), kind.end(), [](unsigned char each) {
        return absl::ascii_islower(each) || absl::ascii_isdigit(each) ||
               each == '_';
      });
  return is_kind && absl::ascii_islower(kind.front()) &&
         IsNumber(text.substr(colon + 1));
}

// What is wrong with a tier's place; empty: nothing.
std::string FaultOfPlace(const TierSpec& tier) {
  switch (tier.kind) {
    case TierKind::kHbm:
      return IsDeviceName(tier.place) ? "" : "its place is a device, cuda:0";
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
  if (absl::StrContains(tier.place, '\0')) {
    return "its place is a path, without a zero byte";
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

// The digits that a text begins with, which it loses.
absl::string_view TakeDigits(absl::string_view* text) {
  size_t count = 0;
  while (count < text->size() && absl::ascii_isdigit((*text)[count])) ++count;
  const absl::string_view digits = text->substr(0, count);
  text->remove_prefix(count);
  return digits;
}

// 0 for a unit that there is not.
int64_t BytesOfUnit(absl::string_view name) {
  for (const Unit& unit : kUnits) {
    if (absl::EqualsIgnoreCase(name, unit.name)) return unit.bytes;
  }
  return 0;
}

// Of 0.`digits`, rounded down: exact, as each division's rest is less than
// what the next digit is worth.
int64_t BytesOfFraction(absl::string_view digits, int64_t unit_bytes) {
  int64_t bytes = 0;
  for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit) {
    bytes = ((*digit - '0') * unit_bytes + bytes) / 10;
  }
  return bytes;
}

// Whole bytes, rounded down; 0: none, or no count of bytes.
int64_t CountBytes(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  const absl::string_view whole = TakeDigits(&text);
  absl::string_view fraction;
  if (absl::ConsumePrefix(&text, ".")) fraction = TakeDigits(&text);
  const int64_t unit = BytesOfUnit(absl::StripLeadingAsciiWhitespace(text));
  int64_t count = 0;
  if (unit == 0 || !absl::SimpleAtoi(whole, &count) ||
      count > kMostBytes / unit) {
    return 0;
  }
  const int64_t rest = BytesOfFraction(fraction, unit);
  return rest <= kMostBytes - count * unit ? count * unit + rest : 0;
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
    const absl::string_view budget = text.substr(at + 1);
    tier.budget_bytes = budget == kAll ? 0 : CountBytes(budget);
    if (tier.budget_bytes == 0 && budget != kAll) {
      return Wrong(text, absl::StrCat("its budget is ", budget,
                                      ", which is no count of bytes"));
    }
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

std::string TierName(const TierSpec& tier) {
  const char* const kind = TierKindName(tier.kind);
  return tier.place.empty() ? kind : absl::StrCat(kind, ":", tier.place);
}

std::string TierText(const TierSpec& tier) {
  const std::string name = TierName(tier);
  if (tier.budget_bytes == 0) {
    // What follows a last '=' of the path is no budget.
    const bool has_sign = absl::StrContains(name, '=');
    return has_sign ? absl::StrCat(name, "=", kAll) : name;
  }
  for (int i = 0; i < kBinaryUnits; ++i) {
    if (tier.budget_bytes % kUnits[i].bytes != 0) continue;
    return absl::StrCat(name, "=", tier.budget_bytes / kUnits[i].bytes,
                        kUnits[i].name);
  }
  return absl::StrCat(name, "=", tier.budget_bytes);
}

int NodeOf(const TierSpec& tier) {
  absl::string_view number = tier.place;
  int node = -1;
  if (!absl::ConsumePrefix(&number, "node") || !IsNumber(number)) return -1;
  return absl::SimpleAtoi(number, &node) ? node : -1;
}

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) {
  if (const int64_t bytes = CountBytes(text); bytes > 0) return bytes;
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is no count of bytes such as 67108864, 64MiB or 1GB"));
}

}  // namespace terrace
