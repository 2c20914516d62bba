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

void WorkingTiers::KeepPassed(Tensor& tensor, Reservation room) const {
  TierResidency& memory = at(kDramTier);
  const bool may_stay =
      room.from() == &memory.tier() && !memory.windows().holds_room() &&
      tensor.at(kDramTier) == nullptr && !tensor.write_pinned() &&
      tensor.drain() == Drain::kNone && tensor.Fetchable();
  if (!may_stay) return;
  memory.residents().Add(tensor, room.extent());
  // It came, and was checked there.
  tensor.BeginFill(kDramTier, std::move(room), tensor.transfer());
  tensor.Filled(kDramTier);
  tensor.Checked(kDramTier);
}

}  // namespace terrace
