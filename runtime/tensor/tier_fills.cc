#include "runtime/tensor/tier_fills.h"

#include "absl/algorithm/container.h"

namespace terrace {

TierFill& TierFills::At(TierId tier) {
  const auto found = absl::c_find_if(
      fills_, [tier](const TierFill& each) { return each.tier == tier; });
  if (found != fills_.end()) return *found;
  return fills_.emplace_back(TierFill{.tier = tier});
}

TierFill TierFills::Of(TierId tier) const {
  const auto found = absl::c_find_if(
      fills_, [tier](const TierFill& each) { return each.tier == tier; });
  return found == fills_.end() ? TierFill{.tier = tier} : *found;
}

bool operator==(const TierFills& a, const TierFills& b) {
  const auto all_in = [](const TierFills& some, const TierFills& all) {
    return absl::c_all_of(some.fills_, [&all](const TierFill& each) {
      return all.Of(each.tier) == each;
    });
  };
  return all_in(a, b) && all_in(b, a);
}

}  // namespace terrace
