#include "runtime/residency/working_tiers.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace terrace {

absl::StatusOr<TierResidency*> WorkingTiers::Named(
    absl::string_view text) const {
  if (text.empty()) return tiers_.front();
  std::vector<std::string> names;
  for (TierResidency* const each : tiers_) {
    const TierId id = each->id();
    const std::string kind = TierKindName(id.kind);
    names.push_back(TierName(each->tier().spec()));
    if (text == names.back() || text == absl::StrCat(kind, ":", id.number) ||
        (id.number == 0 && text == kind)) {
      return each;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("a queue at '", text,
                                                 "': customers work at ",
                                                 absl::StrJoin(names, ", ")));
}

}  // namespace terrace
