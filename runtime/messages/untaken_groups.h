// Ready groups that no customer took, as its queue or the runtime closed first.
#pragma once

#include "runtime/messages/answers.h"
#include "terrace/pin.h"

namespace terrace {

// Ends what the groups were granted, at `pins`: nothing was written. The groups
// are empty then.
template <typename Groups>
void EndUntakenGroups(Groups& untaken, PinOwner& pins) {
  for (const ReadyGroup& group : untaken) {
    if (!group.grants.ok()) continue;
    for (const Grant& grant : *group.grants) {
      pins.EndPin(grant.token, PinEnd::kUnchanged);
    }
  }
  untaken.clear();
}

}  // namespace terrace
