#include "runtime/mover/window_opener.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "runtime/residency/byte_room.h"
#include "terrace/runtime.h"
#include "tiers/memory/dram_tier.h"

namespace terrace {
namespace {

// What the windows of a device's open queues have in memory.
int64_t StagingBytesOf(const std::vector<Customer*>& open) {
  int64_t bytes = 0;
  for (const Customer* const each : open) {
    if (!IsDevice(each->tier) || each->window == nullptr) continue;
    bytes += 2 * StagingSlots(each->window->slots()) * each->window->stride();
  }
  return bytes;
}

}  // namespace

bool WindowOpener::Add(OpenRequest request) {
  Opening opening;
  const absl::StatusOr<TierResidency*> named =
      parts_.working->Named(request.tier);
  if (!named.ok()) {
    parts_.ports->Deliver(request.id, named.status());
    return false;
  }
  opening.tier = (*named)->id();
  const absl::Status health = (*named)->tier().Health();
  if (!health.ok()) {
    parts_.ports->Deliver(
        request.id,
        Reworded(health, absl::StrCat("a queue at ", request.tier, ": ",
                                      absl::string_view(health.message()))));
    return false;
  }
  opening.bytes = WindowBytes(request.slot_bytes, request.slots);
  if (IsDevice(opening.tier)) {
    opening.staging_bytes = StagingBytes(request.slot_bytes, request.slots);
  }
  opening.number = parts_.customers->NextNumber();
  opening.request = std::move(request);
  const absl::Status fits = CheckBudget(opening);
  if (!fits.ok()) {
    parts_.ports->Deliver(opening.request.id, fits);
    return false;
  }
  openings_.push_back(std::move(opening));
  HoldRoom();
  return true;
}

absl::Status WindowOpener::CheckBudget(const Opening& opening) const {
  TERRACE_RETURN_IF_ERROR(CheckOne(opening, opening.tier, opening.bytes));
  return CheckOne(opening, kDramTier, opening.staging_bytes);
}

absl::Status WindowOpener::CheckOne(const Opening& opening, TierId tier,
                                    int64_t bytes) const {
  const TierResidency& residency = parts_.working->at(tier);
  int64_t others = residency.windows().open_bytes();
  if (tier == kDramTier) others += StagingBytesOf(parts_.customers->open());
  const int64_t budget = residency.tier().usage().capacity_bytes;
  if (bytes <= budget - others) return absl::OkStatus();
  const int64_t windows = bytes > INT64_MAX - others ? bytes : bytes + others;
  const bool is_staging = tier != opening.tier;
  return absl::ResourceExhaustedError(absl::StrCat(
      "a window of ", opening.request.slots, " slots of ",
      opening.request.slot_bytes, " bytes: ",
      is_staging ? absl::StrCat("with its staging of ", bytes, " bytes ") : "",
      "all windows together would take ", windows, " bytes",
      is_staging ? " of memory" : "", ", and the budget is ", budget,
      "; the least budget for it is ", windows));
}

void WindowOpener::Serve(absl::Time now,
                         const std::function<std::string()>& holders,
                         std::vector<QueueError>* errors) {
  while (!openings_.empty()) {
    Opening& opening = openings_.front();
    bool hope = false;
    if (!TryOpen(opening, &hope, errors)) {
      if (hope && now < opening.request.deadline) break;
      RefuseOne(opening, holders());
    }
    openings_.pop_front();
  }
  // Those behind one that waits end at their own deadlines.
  std::erase_if(openings_, [&](const Opening& opening) {
    const bool late = now >= opening.request.deadline;
    if (late) RefuseOne(opening, holders());
    return late;
  });
  HoldRoom();
}

// Nothing new becomes resident where the first that waits wants room. What
// comes down from a device for it may still do so in memory.
void WindowOpener::HoldRoom() const {
  for (TierResidency* const each : parts_.working->all()) {
    each->windows().HoldRoom(!openings_.empty() &&
                             openings_.front().wants() == each->id());
  }
}

bool WindowOpener::TryOpen(Opening& opening, bool* hope,
                           std::vector<QueueError>* errors) {
  const int64_t stride = ResidentBytes(opening.request.slot_bytes);
  const int slots = opening.request.slots;
  if (opening.staging_bytes > 0 && opening.staging.empty()) {
    Reservation room = MakeRoom(kDramTier, opening.staging_bytes, hope, errors);
    if (room.empty()) return false;
    opening.staging =
        parts_.staging->Open(std::move(room), stride, StagingSlots(slots));
    HoldRoom();
  }
  Reservation range = MakeRoom(opening.tier, opening.bytes, hope, errors);
  if (range.empty()) {
    AskForPins(opening);
    return false;
  }
  Window* const window =
      parts_.working->at(opening.tier)
          .windows()
          .Open(std::move(range), stride, slots, std::move(opening.staging));
  const Customer& customer =
      parts_.customers->Open(*window, opening.request.id.client);
  parts_.planner->Open(customer.id);
  parts_.ports->Deliver(opening.request.id,
                        OpenedQueue{customer.id, customer.tier});
  return true;
}

// Residents leave until the range is free. Those that leave are waited for
// before others are chosen, so that all residents are looked at once a batch
// and not once a write-back.
Reservation WindowOpener::MakeRoom(TierId tier, int64_t bytes, bool* hope,
                                   std::vector<QueueError>* errors) {
  TierResidency& residency = parts_.working->at(tier);
  while (true) {
    Reservation range = residency.FindRange(bytes);
    if (!range.empty()) return range;
    if (residency.residents().leaving() > 0) {
      *hope = true;
      return range;
    }
    const int64_t free_before = FreeBytes(residency.tier());
    std::vector<Tensor*> leaving;
    residency.EvictForRange(bytes, &leaving);
    parts_.write_back->StartLeaving(&leaving, errors);
    if (FreeBytes(residency.tier()) != free_before) continue;
    *hope = MayCome(tier, bytes);
    return range;
  }
}

void WindowOpener::AskForPins(const Opening& opening) const {
  TierResidency& residency = parts_.working->at(opening.tier);
  if (!residency.residents().is_ranked()) return;
  ByteRoom(residency, *parts_.byte_pins).AskFor(opening.bytes, opening.number);
}

bool WindowOpener::MayCome(TierId tier, int64_t bytes) const {
  // The staging of a window goes with it.
  bool staging_goes = parts_.staging->closing();
  for (const TierResidency* const device : parts_.working->devices()) {
    staging_goes |= device->windows().closing();
  }
  staging_goes &= tier == kDramTier;
  TierResidency& residency = parts_.working->at(tier);
  const bool is_lent = residency.tier().usage().lent_bytes > 0;
  return staging_goes || is_lent ||
         residency.RangeMayCome(bytes, RoomAwaits::kPins,
                                parts_.transfers->late_bytes(tier) > 0);
}

void WindowOpener::RefuseOne(const Opening& opening,
                             const std::string& holders) const {
  const absl::Status unwritten = parts_.write_back->Unwritten();
  const TierId wants = opening.wants();
  Tier& tier = parts_.working->at(wants).tier();
  const int64_t bytes =
      wants == opening.tier ? opening.bytes : opening.staging_bytes;
  // What else than memory has its own words for it.
  std::string why;
  if (IsMemory(wants)) {
    why = absl::StrCat(static_cast<DramTier&>(tier).largest_free_bytes(),
                       " of them in one part, ");
  } else {
    const absl::Status refused = tier.Allocate(bytes, /*must=*/true).status();
    if (!refused.ok()) {
      why = absl::StrCat(absl::string_view(refused.message()), ", ");
    }
  }
  parts_.ports->Deliver(
      opening.request.id,
      WithIoFault(
          absl::ResourceExhaustedError(absl::StrCat(
              "a window of ", opening.bytes, " bytes: ",
              wants == opening.tier ? ""
                                    : absl::StrCat("of the memory for its "
                                                   "staging of ",
                                                   bytes, " bytes "),
              FreeBytes(tier), " of ", tier.usage().capacity_bytes,
              " are free, ", why,
              "and what is between could not be moved out in time; held: ",
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
  for (const Opening& opening : openings_) {
    parts_.ports->Deliver(opening.request.id, why);
  }
  openings_.clear();
}

}  // namespace terrace
