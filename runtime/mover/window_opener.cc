#include "runtime/mover/window_opener.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/io_fault.h"
#include "terrace/runtime.h"

namespace terrace {

bool WindowOpener::Add(OpenRequest request) {
  const int64_t bytes = WindowBytes(request.slot_bytes, request.slots);
  const int64_t others = parts_.residency->windows().open_bytes();
  const int64_t budget = parts_.residency->tier().usage().capacity_bytes;
  if (bytes > budget - others) {
    const int64_t windows = bytes > INT64_MAX - others ? bytes : bytes + others;
    request.reply->Set(absl::ResourceExhaustedError(absl::StrCat(
        "a window of ", request.slots, " slots of ", request.slot_bytes,
        " bytes: all windows together would take ", windows,
        " bytes, and the budget is ", budget, "; the least budget for it is ",
        windows)));
    return false;
  }
  openings_.push_back({std::move(request), bytes});
  parts_.residency->HoldRoom(true);
  return true;
}

void WindowOpener::Serve(absl::Time now,
                         const std::function<std::string()>& holders,
                         std::vector<QueueError>* errors) {
  while (!openings_.empty()) {
    Opening& opening = openings_.front();
    bool hope = false;
    Reservation range = MakeRoom(opening.bytes, &hope, errors);
    if (range.empty()) {
      if (hope && now < opening.request.deadline) break;
      RefuseOne(opening, holders());
      openings_.pop_front();
      continue;
    }
    Window* const window = parts_.residency->windows().Open(
        std::move(range), ResidentBytes(opening.request.slot_bytes),
        opening.request.slots);
    const Customer& customer = parts_.customers->Open(*window);
    parts_.planner->Open(customer.id);
    opening.request.reply->Set(OpenedQueue{customer.id, customer.port});
    openings_.pop_front();
  }
  // Those behind one that waits end at their own deadlines.
  std::erase_if(openings_, [&](const Opening& opening) {
    const bool late = now >= opening.request.deadline;
    if (late) RefuseOne(opening, holders());
    return late;
  });
  parts_.residency->HoldRoom(!openings_.empty());
}

// Residents leave until the range is free. Those that leave are waited for
// before others are chosen, so that all residents are looked at once a batch
// and not once a write-back.
Reservation WindowOpener::MakeRoom(int64_t bytes, bool* hope,
                                   std::vector<QueueError>* errors) {
  TierResidency& residency = *parts_.residency;
  while (true) {
    Reservation range = residency.FindRange(bytes);
    if (!range.empty()) return range;
    if (residency.residents().leaving() > 0) {
      *hope = true;
      return range;
    }
    const int64_t free_before = residency.tier().free_bytes();
    std::vector<Tensor*> leaving;
    residency.EvictForRange(bytes, &leaving);
    parts_.write_back->StartLeaving(&leaving, errors);
    if (residency.tier().free_bytes() != free_before) continue;
    *hope = residency.RangeMayCome(bytes, parts_.transfers->late_bytes() > 0);
    return range;
  }
}

void WindowOpener::RefuseOne(const Opening& opening,
                             const std::string& holders) const {
  const absl::Status unwritten = parts_.write_back->Unwritten();
  const DramTier& tier = parts_.residency->tier();
  opening.request.reply->Set(WithIoFault(
      absl::ResourceExhaustedError(absl::StrCat(
          "a window of ", opening.bytes, " bytes: ", tier.free_bytes(), " of ",
          tier.usage().capacity_bytes, " are free, ", tier.largest_free_bytes(),
          " of them in one part, and what is between could not be moved out "
          "in time; held: ",
          holders, absl::string_view(unwritten.message()))),
      IoFaultOf(unwritten)));
}

absl::Time WindowOpener::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Opening& opening : openings_) {
    next = std::min(next, opening.request.deadline);
  }
  return next;
}

void WindowOpener::Refuse(const absl::Status& why) {
  for (const Opening& opening : openings_) opening.request.reply->Set(why);
  openings_.clear();
}

}  // namespace terrace
