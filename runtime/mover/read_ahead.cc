#include "runtime/mover/read_ahead.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "terrace/runtime.h"

namespace terrace {
namespace {

// Of a turn: uses that are looked at, and tensors that begin to come; and
// residents that are looked at each time that room is made. A look costs less
// than a microsecond, and a use or an arrival brings the next turn.
constexpr int kMostUses = 256;
constexpr int64_t kMostResidents = 64;
// One of so many parts of the memory outside the windows is for motion: what
// comes earlier than that is in the place of what a step still uses, and has to
// come once more.
constexpr int64_t kMotionParts = 8;
// Where that is less than so many of the largest tensors, whose reads and
// writes would follow each other, it is as much, or one of fewer parts.
constexpr int64_t kMotionTensors = 4;
constexpr int64_t kFewestMotionParts = 4;
// One of so many may be on its way or unused at a time, and no use is looked at
// that is farther from now.
constexpr int64_t kAheadParts = 2;

// It asks for pins there by this number, which is no group's.
uint64_t AskerAt(const TierResidency& residency) {
  const uint64_t kind = IsDevice(residency.id()) ? uint64_t{1} << 16 : 0;
  return UINT64_MAX - kind - static_cast<uint64_t>(residency.id().number);
}

int64_t OutsideWindows(const TierResidency& residency) {
  const TierUsage usage = residency.tier().usage();
  return usage.capacity_bytes - usage.lent_bytes -
         residency.windows().size_bytes();
}

}  // namespace

void ReadAhead::EndWaits() {
  for (Level& each : levels_) each.waits = false;
  for (auto& [tier, ahead] : ahead_) {
    ahead.waits = false;
    ahead.gave_room = false;
  }
}

void ReadAhead::OnUse(const Tensor& tensor) {
  EndWaits();
  largest_bytes_ =
      std::max(largest_bytes_, ResidentBytes(tensor.spec.size_bytes));
  const TensorId key = KeyOf(tensor);
  if (key.value < 0) newest_[key.value] = tensor.id;
  for (auto& [tier, ahead] : ahead_) {
    ahead.planned.Erase(tensor.id);
    ahead.unused.Erase(tensor.id);
  }
}

void ReadAhead::FollowOrder(const MergedTrace& merged) {
  if (order_ != merged.order()) {
    order_ = merged.order();
    for (Level& each : levels_) each.looked.clear();
    for (auto& [tier, ahead] : ahead_) ahead.planned.Clear();
    EndWaits();
  }
  for (const auto& [key, lane] : merged.lanes()) {
    for (Level& level : levels_) {
      Looked& looked = level.looked[key];
      const int64_t passed =
          lane.position() - std::exchange(looked.position, lane.position());
      looked.uses = std::max(int64_t{0}, looked.uses - passed);
      if (passed > 0) EndWaits();
    }
  }
}

std::optional<ReadAhead::Upcoming> ReadAhead::Next(const MergedTrace& merged,
                                                   Level* level) {
  std::optional<Upcoming> first;
  for (const auto& [key, lane] : merged.lanes()) {
    Looked& looked = level->looked.at(key);
    const auto use = merged.Expected(lane, looked.uses);
    if (!use.has_value()) continue;
    if (first.has_value() && first->use.bytes <= use->bytes) continue;
    first = {*use, &looked};
  }
  return first;
}

void ReadAhead::Propose(const absl::flat_hash_set<TierId>& lacking,
                        std::vector<QueueError>* errors) {
  const MergedTrace* const merged = parts_.planner->merged();
  if (!parts_.enabled || merged == nullptr) return;
  FollowOrder(*merged);
  for (TierResidency* const memory : parts_.working->all()) {
    const auto ahead = ahead_.find(memory->id());
    if (ahead == ahead_.end() || lacking.contains(memory->id())) continue;
    BeginPlanned(&ahead->second, *memory);
    MakeRoomAgain(&ahead->second, *memory, errors);
  }
  const size_t levels = parts_.working->devices().empty() ? 1 : levels_.size();
  for (size_t i = 0; i < levels; ++i) {
    LookOn(*merged, &levels_[i], lacking, errors);
  }
}

void ReadAhead::LookOn(const MergedTrace& merged, Level* level,
                       const absl::flat_hash_set<TierId>& lacking,
                       std::vector<QueueError>* errors) {
  for (int i = 0; i < kMostUses && !level->waits; ++i) {
    const std::optional<Upcoming> next = Next(merged, level);
    if (!next.has_value()) {
      level->waits = true;
      return;
    }
    const LaneTrace::Expected& use = next->use;
    Tensor* const tensor = Find(use.tensor);
    TierResidency* const residency =
        tensor == nullptr ? nullptr : GoalOf(*tensor, *level);
    if (residency != nullptr && lacking.contains(residency->id())) return;
    level->waits = IsFar(use.bytes, residency) ||
                   (residency != nullptr && !Plan(*tensor, *residency, errors));
    if (!level->waits) ++next->looked->uses;
  }
}

// What is in memory now may have left by the time that it is near, and what
// does not exist yet may have come.
bool ReadAhead::IsFar(int64_t bytes, const TierResidency* residency) const {
  const TierResidency& memory =
      residency == nullptr ? parts_.working->at(kDramTier) : *residency;
  return bytes > OutsideWindows(memory) / kAheadParts;
}

Tensor* ReadAhead::Find(TensorId key) const {
  if (key.value >= 0) return parts_.table->Find(key);
  const auto found = newest_.find(key.value);
  return found == newest_.end() ? nullptr : parts_.table->Find(found->second);
}

TierResidency* ReadAhead::ResidencyOf(const Tensor& tensor) const {
  const Customer* const customer = parts_.customers->FindOpen(tensor.customer);
  if (customer == nullptr) return nullptr;
  const bool on_device = IsDevice(customer->tier);
  if (on_device && !customer->bytes.has_value()) return nullptr;
  TierResidency& residency = parts_.working->at(customer->tier);
  const bool may_come = customer->bytes.has_value() || TakesPins(residency);
  return may_come ? &residency : nullptr;
}

TierResidency* ReadAhead::GoalOf(const Tensor& tensor,
                                 const Level& level) const {
  TierResidency* const residency = ResidencyOf(tensor);
  if (residency == nullptr) return nullptr;
  if (!IsDevice(residency->id())) {
    return level.to_devices ? nullptr : residency;
  }
  if (level.to_devices) return residency;
  return IsBelow(tensor, *residency) ? &parts_.working->at(kDramTier) : nullptr;
}

bool ReadAhead::IsBelow(const Tensor& tensor,
                        const TierResidency& residency) const {
  const Copy* const source = tensor.SourceFor(residency.id());
  return IsDevice(residency.id()) && tensor.at(residency.id()) == nullptr &&
         source != nullptr && IsRestingTier(source->place.tier());
}

// As many pins as there are slots take no more than the windows have. They and
// the windows leave at most so many parts between them, one of which is as
// large as the largest tensor then.
bool ReadAhead::TakesPins(const TierResidency& residency) const {
  const Windows& windows = residency.windows();
  const int64_t parts = windows.open_slots() + windows.open_count() + 1;
  return residency.residents().is_ranked() &&
         OutsideWindows(residency) - windows.size_bytes() >=
             parts * largest_bytes_;
}

int64_t ReadAhead::MotionBytes(const TierResidency& residency) const {
  const int64_t outside = OutsideWindows(residency);
  // What never comes ahead does not count.
  const int64_t tensors = largest_bytes_ <= outside / kAheadParts
                              ? kMotionTensors * largest_bytes_
                              : 0;
  return std::max(outside / kMotionParts,
                  std::min(outside / kFewestMotionParts, tensors));
}

bool ReadAhead::Plan(Tensor& tensor, TierResidency& residency,
                     std::vector<QueueError>* errors) {
  const int64_t bytes = ResidentBytes(tensor.spec.size_bytes);
  const int64_t most = OutsideWindows(residency) / kAheadParts;
  if (IsDevice(residency.id()) && bytes <= most) {
    // It comes to memory first, or never before it is asked for.
    const TierId arriving = tensor.ArrivingAt();
    if (arriving != kNoTier && IsMemory(arriving)) return false;
    if (IsBelow(tensor, residency)) {
      const int64_t in_memory =
          OutsideWindows(parts_.working->at(kDramTier)) / kAheadParts;
      return bytes > in_memory || parts_.admission->HasFailedAhead(tensor);
    }
    const Copy* const source = tensor.SourceFor(residency.id());
    if (source == nullptr || !IsMemory(source->place.tier())) return true;
  }
  if (!MayBeRead(tensor, residency) || bytes > most) return true;
  Ahead& ahead = ahead_[residency.id()];
  TensorLine& planned = ahead.planned;
  TensorLine& unused = ahead.unused;
  if (planned.contains(tensor.id)) return true;
  if (planned.bytes() + unused.bytes() + bytes > most) {
    ForgetGone(&unused, residency.id());
  }
  if (planned.bytes() + unused.bytes() + bytes > most) return false;
  if (planned.empty() && TryBegin(tensor, residency, &unused)) return true;
  const int64_t next = parts_.planner->NextUse(KeyOf(tensor));
  if (next > MotionBytes(residency)) return false;
  const int64_t all = planned.bytes() + bytes;
  // Where enough is free, but in parts, more leaves for the first alone.
  const bool has_room = !planned.empty() && all <= FreeBytes(residency.tier());
  if (!has_room && !MakeRoom(all, bytes, next, residency, errors)) return false;
  planned.Add(tensor.id, bytes);
  BeginPlanned(&ahead, residency);
  return true;
}

bool ReadAhead::MayBeRead(const Tensor& tensor,
                          const TierResidency& residency) const {
  return MayBeFetched(tensor, residency.id()) &&
         !parts_.admission->HasFailedAhead(tensor);
}

bool ReadAhead::MayCome(TensorId id, const TierResidency& residency) const {
  const Tensor* const tensor = parts_.table->Find(id);
  if (tensor == nullptr) return false;
  const TierResidency* const goal = ResidencyOf(*tensor);
  if (goal == nullptr) return false;
  const bool is_below = IsBelow(*tensor, *goal);
  const bool comes =
      goal == &residency ? !is_below : is_below && residency.id() == kDramTier;
  return comes && MayBeRead(*tensor, residency) &&
         parts_.planner->NextUse(KeyOf(*tensor)) <= MotionBytes(residency);
}

void ReadAhead::BeginPlanned(Ahead* ahead, TierResidency& residency) {
  TensorLine& planned = ahead->planned;
  for (int i = 0; i < kMostUses && !planned.empty(); ++i) {
    const TensorId id = planned.first();
    if (MayCome(id, residency)) {
      Tensor& tensor = *parts_.table->Find(id);
      if (!TryBegin(tensor, residency, &ahead->unused)) return;
    }
    planned.Erase(id);
  }
}

void ReadAhead::MakeRoomAgain(Ahead* ahead, TierResidency& residency,
                              std::vector<QueueError>* errors) {
  TensorLine& planned = ahead->planned;
  while (!planned.empty() && !MayCome(planned.last(), residency)) {
    planned.Erase(planned.last());
  }
  if (planned.empty() || ahead->waits || residency.windows().holds_room()) {
    return;
  }
  const auto make = [&](int64_t bytes, TensorId last) {
    const Tensor& tensor = *parts_.table->Find(last);
    return MakeRoom(bytes, planned.first_bytes(),
                    parts_.planner->NextUse(KeyOf(tensor)), residency, errors);
  };
  // What is free is in parts, as the first has not begun.
  if (planned.bytes() <= FreeBytes(residency.tier())) {
    if (ComingBytes(residency) > 0 || ahead->gave_room) return;
    ahead->gave_room = true;
  }
  ahead->waits = !make(planned.bytes(), planned.last()) &&
                 !make(planned.first_bytes(), planned.first());
  if (!ahead->waits) BeginPlanned(ahead, residency);
}

bool ReadAhead::TryBegin(Tensor& tensor, TierResidency& residency,
                         TensorLine* unused) {
  Reservation room = residency.FindRoom(tensor);
  if (room.empty()) return false;
  unused->Add(tensor.id, ResidentBytes(tensor.spec.size_bytes));
  parts_.admission->NoteAhead(tensor);
  parts_.transfers->StartFill(tensor, std::move(room), IoClass::kPrefetch);
  return true;
}

int64_t ReadAhead::ComingBytes(const TierResidency& residency) const {
  return residency.residents().leaving_bytes() +
         parts_.pins->coming_bytes_for(AskerAt(residency));
}

bool ReadAhead::MakeRoom(int64_t bytes, int64_t part_bytes, int64_t next_use,
                         TierResidency& residency,
                         std::vector<QueueError>* errors) const {
  if (residency.windows().holds_room()) return false;
  Lack lack{.bytes = bytes - FreeBytes(residency.tier()), .next_use = next_use};
  const int64_t comes = ComingBytes(residency);
  if (lack.bytes <= 0 && comes == 0) lack.bytes = lack.part_bytes = part_bytes;
  lack.bytes -= comes;
  if (lack.bytes <= 0) return true;
  const std::vector<Tensor*> victims = PickVictims(lack, residency);
  if (victims.empty()) return false;
  std::vector<Tensor*> leaving;
  for (Tensor* const each : victims) {
    if (each->at(residency.id())->pins > 0) {
      residency.residents().SetAside(*each);
      parts_.pins->AskForRoom(*each, residency.id(), AskerAt(residency));
    } else if (residency.Evict(*each)) {
      leaving.push_back(each);
    }
  }
  parts_.write_back->StartLeaving(&leaving, errors);
  return true;
}

std::vector<Tensor*> ReadAhead::PickVictims(const Lack& lack,
                                            TierResidency& residency) const {
  const TierId tier = residency.id();
  ResidentSet& residents = residency.residents();
  const auto is_later = [&](const Tensor& each) {
    return parts_.planner->NextUse(KeyOf(each)) > lack.next_use;
  };
  const auto leaves_now = [&](const Tensor& each) {
    return each.at(tier)->pins == 0 && residency.MayLeave(each) &&
           is_later(each);
  };
  const auto may_be_asked = [&](const Tensor& each) {
    const int32_t pins = each.at(tier)->pins;
    return pins > 0 && parts_.pins->MayAsk(each, tier, pins) &&
           !parts_.pins->HasWaiting(each) && !each.refusals.gave_up() &&
           residency.CanGoDown(each) && is_later(each);
  };
  if (lack.part_bytes > 0) {
    // Nothing comes, or it would be waited for.
    const auto comes = [](const Tensor&) { return false; };
    const auto leaves = [&](const Tensor& each) {
      return leaves_now(each) || may_be_asked(each);
    };
    std::optional<std::vector<Tensor*>> run = residents.RunToLeave(
        lack.part_bytes, residency.tier(), comes, leaves, kMostResidents);
    if (run.has_value()) return *std::move(run);
  }
  int64_t missing = lack.bytes;
  std::vector<Tensor*> victims;
  const auto add = [&](auto may_leave) {
    const std::vector<Tensor*> found =
        residents.FirstToLeave(missing, may_leave, kMostResidents);
    victims.insert(victims.end(), found.begin(), found.end());
    for (const Tensor* const each : found) {
      missing -= ResidentBytes(each->spec.size_bytes);
    }
  };
  add(leaves_now);
  add(may_be_asked);
  if (missing > 0) victims.clear();
  return victims;
}

void ReadAhead::ForgetGone(TensorLine* unused, TierId tier) const {
  while (!unused->empty()) {
    const TensorId first = unused->first();
    const Tensor* const tensor = parts_.table->Find(first);
    const bool is_ahead = tensor != nullptr && tensor->at(tier) != nullptr &&
                          parts_.admission->IsAhead(*tensor);
    if (is_ahead) return;
    unused->Erase(first);
  }
}

}  // namespace terrace
