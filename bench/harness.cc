#include "bench/harness.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace terrace::bench {

absl::StatusOr<Flags> Flags::Parse(int argc, const char* const* argv,
                                   const std::vector<std::string>& known) {
  Flags flags;
  for (int i = 0; i < argc; ++i) {
    std::string name = argv[i];
    if (name.rfind("--", 0) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("not a flag: ", name));
    }
    name = name.substr(2);
    std::string value;
    const size_t equals = name.find('=');
    if (equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    } else if (i + 1 < argc && std::string(argv[i + 1]).rfind("--", 0) != 0) {
      value = argv[++i];
    }
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat("no such flag: --", name));
    }
    flags.values_[name] = value;
  }
  return flags;
}

std::string Flags::text(const std::string& name,
                        const std::string& otherwise) const {
  const auto it = values_.find(name);
  return it == values_.end() ? otherwise : it->second;
}

absl::StatusOr<int64_t> Flags::number(const std::string& name,
                                      int64_t otherwise) const {
  const auto it = values_.find(name);
  if (it == values_.end()) return otherwise;
  std::string digits = it->second;
  int64_t unit = 1;
  if (!digits.empty()) {
    const size_t power = std::string("KMG").find(digits.back());
    if (power != std::string::npos) {
      unit = int64_t{1} << (10 * (power + 1));
      digits.pop_back();
    }
  }
  int64_t value = 0;
  if (!absl::SimpleAtoi(digits, &value) || value < 0 ||
      value > INT64_MAX / unit) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, " is not a number: '", it->second, "'"));
  }
  return value * unit;
}

Spread SpreadOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  const double median = values.size() % 2 == 1
                            ? values[middle]
                            : (values[middle - 1] + values[middle]) / 2;
  return {values.front(), median, values.back()};
}

absl::StatusOr<RowResult> RunRow(const Row& row, int rounds) {
  std::vector<double> subject;
  std::vector<double> bound;
  std::vector<double> ratio;
  for (int round = 0; round <= rounds; ++round) {
    // Rotated, so that neither is always the one that finds a warm machine.
    double rates[2] = {};
    for (int turn = 0; turn < 2; ++turn) {
      const int which = (round + turn) % 2;
      const Variant& variant = which == 0 ? row.subject : row.bound;
      TERRACE_ASSIGN_OR_RETURN(rates[which], variant.run());
    }
    if (round == 0) continue;
    subject.push_back(rates[0]);
    bound.push_back(rates[1]);
    ratio.push_back(rates[0] / rates[1]);
  }
  return RowResult{SpreadOf(subject), SpreadOf(bound), SpreadOf(ratio)};
}

void PrintHeader(bool json) {
  if (json) return;
  std::printf("%-16s %-26s %-26s %s\n", "row", "measured (min med max)",
              "bound (min med max)", "ratio (min med max)");
}

void PrintRow(const Row& row, const RowResult& result, bool json,
              const std::string& extra) {
  const auto triple = [json](const Spread& spread, int digits) {
    return absl::StrFormat(json ? "[%.*f,%.*f,%.*f]" : "%.*f / %.*f / %.*f",
                           digits, spread.minimum, digits, spread.median,
                           digits, spread.maximum);
  };
  const std::string subject = triple(result.subject, 1);
  const std::string bound = triple(result.bound, 1);
  const std::string ratio = triple(result.ratio, 3);
  if (json) {
    std::printf(
        "{\"row\":\"%s\",\"unit\":\"%s\",\"subject\":\"%s\",\"bound\":\"%s\","
        "\"measured\":%s,\"bound_measured\":%s,\"ratio\":%s%s%s}\n",
        row.key.c_str(), row.unit.c_str(), row.subject.name.c_str(),
        row.bound.name.c_str(), subject.c_str(), bound.c_str(), ratio.c_str(),
        extra.empty() ? "" : ",", extra.c_str());
  } else {
    std::printf("%-16s %-26s %-26s %s  %s: %s / %s\n", row.key.c_str(),
                subject.c_str(), bound.c_str(), ratio.c_str(), row.unit.c_str(),
                row.subject.name.c_str(), row.bound.name.c_str());
  }
  std::fflush(stdout);
}

double Seconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace terrace::bench
