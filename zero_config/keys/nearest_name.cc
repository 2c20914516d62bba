#include "zero_config/keys/nearest_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace terrace {
namespace {

constexpr size_t kMostListed = 110;  // characters

size_t Edits(const std::string& a, const std::string& b) {
  // Rows i - 2, i - 1 and i of the table of distances between prefixes.
  std::vector<size_t> older, old(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) old[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t same = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({old[j] + 1, row[j - 1] + 1, old[j - 1] + same});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], older[j - 2] + 1);
      }
    }
    older = old;
    old = row;
  }
  return old[b.size()];
}

}  // namespace

std::string NearestName(absl::string_view name,
                        const std::vector<std::string>& known,
                        size_t most_edits) {
  const std::string wanted = absl::AsciiStrToLower(name);
  std::string best;
  size_t fewest = most_edits + 1;
  for (const std::string& candidate : known) {
    const size_t edits = Edits(wanted, absl::AsciiStrToLower(candidate));
    if (edits < fewest) {
      fewest = edits;
      best = candidate;
    }
  }
  return best;
}

bool IsNearMiss(absl::string_view name, const std::vector<std::string>& known) {
  const size_t most_edits =
      std::min<size_t>(2, std::max<size_t>(1, name.size() / 4));
  return !NearestName(name, known, most_edits).empty();
}

std::string DidYouMean(absl::string_view name,
                       const std::vector<std::string>& known) {
  const std::string nearest =
      NearestName(name, known, std::max<size_t>(1, name.size() / 3));
  if (nearest.empty()) return "";
  return absl::StrCat("; did you mean \"", nearest, "\"?");
}

std::string Suggestion(absl::string_view name,
                       const std::vector<std::string>& known) {
  const std::string nearest = DidYouMean(name, known);
  if (!nearest.empty()) return nearest;
  const std::string all = absl::StrJoin(known, ", ");
  return all.size() <= kMostListed ? absl::StrCat("; known: ", all)
                                   : "; docs/deepspeed.md has the known ones";
}

}  // namespace terrace
