#include "examples/train_gpt/command_line/flag_values.h"

#include <algorithm>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "terrace/tier.h"

namespace train_gpt {
namespace {

// Levenshtein's distance by one row.
size_t Edits(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1] ? 1 : 0);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

absl::StatusOr<int64_t> ParseInteger(absl::string_view flag,
                                     absl::string_view text, int64_t least,
                                     int64_t most) {
  int64_t value = 0;
  if (absl::SimpleAtoi(text, &value) && value >= least && value <= most) {
    return value;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " takes a whole number from ", least, " to ", most,
                   ", not '", text, "'"));
}

absl::StatusOr<double> ParseNumber(absl::string_view flag,
                                   absl::string_view text, double least,
                                   double most) {
  double value = 0;
  if (absl::SimpleAtod(text, &value) && value >= least && value <= most) {
    return value;
  }
  return absl::InvalidArgumentError(absl::StrCat(flag, " takes a number from ",
                                                 least, " to ", most, ", not '",
                                                 text, "'"));
}

absl::StatusOr<int64_t> ParseBytes(absl::string_view flag,
                                   absl::string_view text) {
  absl::StatusOr<int64_t> bytes = terrace::ParseBytes(text);
  if (bytes.ok()) return bytes;
  return absl::InvalidArgumentError(absl::StrCat(
      flag, " takes a count of bytes such as 67108864, 64MiB or 1GB, not '",
      text, "'"));
}

absl::StatusOr<std::pair<int64_t, int64_t>> ParseBytesPair(
    absl::string_view flag, absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  if (parts.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, " takes two counts of bytes, READ,WRITE, not '", text, "'"));
  }
  std::pair<int64_t, int64_t> pair = {0, 0};
  for (int i = 0; i < 2; ++i) {
    if (parts[i] == "0") continue;
    auto bytes = ParseBytes(flag, parts[i]);
    if (!bytes.ok()) return bytes.status();
    (i == 0 ? pair.first : pair.second) = *bytes;
  }
  return pair;
}

std::string NearestName(absl::string_view name,
                        const std::vector<std::string>& known) {
  std::string best;
  size_t fewest = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const size_t edits = Edits(name, candidate);
    if (edits < fewest) {
      fewest = edits;
      best = candidate;
    }
  }
  return best;
}

}  // namespace train_gpt
