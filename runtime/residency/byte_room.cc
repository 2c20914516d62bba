#include "runtime/residency/byte_room.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "terrace/runtime.h"

namespace terrace {

void ByteRoom::AddWaiting(uint64_t token) {
  const Tensor* const tensor = pins_.TensorOf(token, residency_.id());
  if (tensor != nullptr) waiting_.insert(tensor);
}

bool ByteRoom::FitsNowhere(absl::Span<Tensor* const> tensors) const {
  if (tensors.size() != 1 ||
      ResidentBytes(tensors[0]->spec.size_bytes) < no_part_bytes_) {
    return false;
  }
  // Whoever was asked already may yet make room.
  return pins_.AllPinned(residency_.id(), [this](const Tensor& tensor) {
    return waiting_.contains(&tensor) ||
           MayAsk(tensor, *tensor.at(residency_.id()));
  });
}

bool ByteRoom::AllWaitBut(absl::Span<Tensor* const> tensors) const {
  size_t stay = waiting_.size();
  for (const Tensor* const tensor : tensors) {
    const bool stays =
        pins_.IsPinned(*tensor, residency_.id()) && !waiting_.contains(tensor);
    if (stays) ++stay;
  }
  return stay == pins_.pinned_tensors(residency_.id());
}

int64_t ByteRoom::FreeFor(const RoomSeeker& seeker) const {
  const int64_t free_bytes = FreeBytes(residency_.tier());
  if (seeker.uses_pins) return free_bytes;
  return std::max(int64_t{0}, free_bytes - kept_bytes_);
}

bool ByteRoom::Find(absl::Span<Tensor* const> tensors, RoomSeeker* seeker,
                    Rooms* rooms, std::vector<Tensor*>* leaving, bool passing) {
  rooms->clear();
  rooms->resize(tensors.size());
  int64_t bytes = 0;
  for (const Tensor* const tensor : tensors) {
    if (tensor->at(residency_.id()) != nullptr) continue;
    bytes += ResidentBytes(tensor->spec.size_bytes);
  }
  if (bytes == 0) return true;
  while (true) {
    const int64_t free_bytes = FreeFor(*seeker);
    if (bytes <= free_bytes && Take(tensors, rooms, passing)) return true;
    const Want want = WantOf(bytes, free_bytes, seeker->number);
    if (want.missing_bytes <= 0) return false;
    const int64_t made = MakeRoom(want, tensors, leaving);
    // What is larger than the budget never has it, however much is kept.
    if (bytes <= residency_.tier().usage().capacity_bytes) {
      seeker->made_bytes = std::min(bytes, seeker->made_bytes + made);
    }
    const int64_t free_now = FreeFor(*seeker);
    // The rest is on its way, or cannot be had now.
    if (free_now == free_bytes || free_now < bytes) return false;
  }
}

ByteRoom::Want ByteRoom::WantOf(int64_t bytes, int64_t free_bytes,
                                uint64_t asker) {
  Want want{.asker = asker};
  if (bytes <= free_bytes) want.part_bytes = bytes;
  want.missing_bytes = bytes <= free_bytes ? bytes : bytes - free_bytes;
  want.missing_bytes -= pins_.coming_bytes_for(asker);
  const int64_t leaves =
      std::clamp(want.missing_bytes, int64_t{0}, leaving_bytes_);
  leaving_bytes_ -= leaves;
  want.missing_bytes -= leaves;
  want.has_leaving = leaves > 0;
  return want;
}

bool ByteRoom::Take(absl::Span<Tensor* const> tensors, Rooms* rooms,
                    bool passing) const {
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tensor& tensor = *tensors[i];
    if (tensor.at(residency_.id()) != nullptr) continue;
    (*rooms)[i] =
        passing ? residency_.FindRange(ResidentBytes(tensor.spec.size_bytes))
                : residency_.TakeRoom(tensor);
    if (!(*rooms)[i].empty()) continue;
    GiveBack(tensors, rooms);
    return false;
  }
  return true;
}

void ByteRoom::GiveBack(absl::Span<Tensor* const> tensors, Rooms* rooms) const {
  for (size_t i = 0; i < tensors.size(); ++i) {
    Reservation& room = (*rooms)[i];
    if (!room.empty()) residency_.GiveBack(*tensors[i], std::move(room));
  }
}

bool ByteRoom::MayAsk(const Tensor& tensor, const Copy& copy) const {
  return copy.pins > 0 && !waiting_.contains(&tensor) &&
         pins_.MayAsk(tensor, residency_.id(), copy.pins);
}

std::vector<Tensor*> ByteRoom::PickVictims(const Want& want,
                                           absl::Span<Tensor* const> besides) {
  const TierId tier = residency_.id();
  ResidentSet& residents = residency_.residents();
  const auto may_leave = [&](const Tensor& tensor) {
    const Copy& copy = *tensor.at(tier);
    if (copy.pins == 0) return residency_.MayLeave(tensor);
    return MayAsk(tensor, copy) && !absl::c_linear_search(besides, &tensor);
  };
  if (want.part_bytes > 0 && !rest_.has_value()) {
    const bool alone = besides.size() == 1;
    if (alone && want.part_bytes >= no_part_bytes_) return {};
    const auto comes = [&](const Tensor& tensor) {
      return residents.IsLeaving(tensor)
                 ? want.has_leaving
                 : pins_.ComesFor(tensor, tier, want.asker);
    };
    std::optional<std::vector<Tensor*>> run = residents.RunToLeave(
        want.part_bytes, residency_.tier(), comes, may_leave);
    if (run.has_value()) return *std::move(run);
    // Several find room in parts as well; one does not, whatever leaves.
    if (alone) {
      no_part_bytes_ = want.part_bytes;
      return {};
    }
  }
  int64_t bytes = want.missing_bytes;
  std::vector<Tensor*> victims;
  if (!rest_.has_value()) {
    victims = residents.FirstToLeave(bytes, may_leave);
    for (const Tensor* const each : victims) {
      bytes -= ResidentBytes(each->spec.size_bytes);
    }
    if (bytes > 0) rest_.emplace(besides.begin(), besides.end());
    return victims;
  }
  for (Tensor* const each : *rest_) {
    if (bytes <= 0) break;
    if (!residents.Has(*each) || residents.IsLeaving(*each)) continue;
    if (!may_leave(*each)) continue;
    victims.push_back(each);
    bytes -= ResidentBytes(each->spec.size_bytes);
  }
  return victims;
}

int64_t ByteRoom::MakeRoom(const Want& want, absl::Span<Tensor* const> besides,
                           std::vector<Tensor*>* leaving) {
  int64_t made = 0;
  for (Tensor* const victim : PickVictims(want, besides)) {
    if (victim->at(residency_.id())->pins > 0) {
      Ask(*victim, want.asker);
      continue;
    }
    made += ResidentBytes(victim->spec.size_bytes);
    if (residency_.Evict(*victim)) leaving->push_back(victim);
  }
  return made;
}

void ByteRoom::Ask(Tensor& tensor, uint64_t asker) {
  residency_.residents().SetAside(tensor);
  pins_.AskForRoom(tensor, residency_.id(), asker);
}

void ByteRoom::AskFor(Tensor& tensor, uint64_t asker) {
  if (MayAsk(tensor, *tensor.at(residency_.id()))) Ask(tensor, asker);
}

void ByteRoom::AskFor(int64_t bytes, uint64_t asker) {
  const TierId tier = residency_.id();
  const Want want = WantOf(bytes, FreeBytes(residency_.tier()), asker);
  const std::vector<Tensor*> victims = residency_.residents().FirstToLeave(
      want.missing_bytes,
      [&](const Tensor& tensor) { return MayAsk(tensor, *tensor.at(tier)); });
  for (Tensor* const victim : victims) Ask(*victim, asker);
}

}  // namespace terrace
