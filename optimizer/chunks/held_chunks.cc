#include "optimizer/chunks/held_chunks.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace terrace {

absl::StatusOr<std::byte*> HeldChunks::Hold(int index, Access access,
                                            absl::Time deadline) {
  Held& held = held_.at(static_cast<size_t>(chunks_.chunk(index).dtype));
  if (held.index == index) return held.pin.data().data();
  held = Held();
  absl::StatusOr<Pin> pin = Fetch(index, access, deadline);
  const bool others = std::any_of(held_.begin(), held_.end(),
                                  [](const Held& h) { return h.index >= 0; });
  // A window has a slot for each dtype, but faults can leave it with fewer.
  if (absl::IsFailedPrecondition(pin.status()) && others) {
    Release();
    pin = Fetch(index, access, deadline);
  }
  TERRACE_RETURN_IF_ERROR(pin.status());
  held = {index, *std::move(pin)};
  return held.pin.data().data();
}

absl::StatusOr<Pin> HeldChunks::Fetch(int index, Access access,
                                      absl::Time deadline) {
  TERRACE_CHECK(access == Access::kOverwrite || !chunks_.contents(index).fresh);
  return requests_.Fetch(chunks_.tensor(index), access, deadline);
}

void HeldChunks::Release() { held_ = {}; }

}  // namespace terrace
