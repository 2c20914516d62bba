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

bool ByteRoom::AllWaitBut(absl::Span<Tensor* const> tensors) const {
  size_t stay = waiting_.size();
  for (const Tensor* const tensor : tensors) {
    const bool stays =
        pins_.IsPinned(*tensor, residency_.id()) && !waiting_.contains(tensor);
    if (stays) ++stay;
  }
  return stay == pins_.pinned_tensors(residency_.id());
}

bool ByteRoom::Find(absl::Span<Tensor* const> tensors, bool asks, Rooms* rooms,
                    std::vector<Tensor*>* leaving) {
  rooms->clear();
  rooms->resize(tensors.size());
  int64_t bytes = 0;
  for (const Tensor* const tensor : tensors) {
    if (tensor->at(residency_.id()) != nullptr) continue;
    bytes += ResidentBytes(tensor->spec.size_bytes);
  }
  while (!Take(tensors, rooms)) {
    const int64_t free_bytes = FreeBytes(residency_.tier());
    // As much as all of it only if what is free is in parts.
    int64_t missing = free_bytes < bytes ? bytes - free_bytes : bytes;
    const int64_t coming = std::min(missing, coming_bytes_);
    coming_bytes_ -= coming;
    missing -= coming;
    if (missing == 0 || !MakeRoom(missing, tensors, asks, leaving))
      return false;
  }
  return true;
}

bool ByteRoom::Take(absl::Span<Tensor* const> tensors, Rooms* rooms) const {
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tensor& tensor = *tensors[i];
    if (tensor.at(residency_.id()) != nullptr) continue;
    (*rooms)[i] = residency_.TakeRoom(tensor);
    if (!(*rooms)[i].empty()) continue;
    for (size_t before = 0; before < i; ++before) {
      Reservation& room = (*rooms)[before];
      if (!room.empty()) {
        residency_.GiveBack(*tensors[before], std::move(room));
      }
    }
    return false;
  }
  return true;
}

bool ByteRoom::MayAsk(const Tensor& tensor, const Copy& copy) const {
  return copy.pins > 0 && !waiting_.contains(&tensor) &&
         pins_.MayAsk(tensor, residency_.id(), copy.pins);
}

// True: some of it is free now.
bool ByteRoom::MakeRoom(int64_t bytes, absl::Span<Tensor* const> besides,
                        bool asks, std::vector<Tensor*>* leaving) {
  const TierId tier = residency_.id();
  const std::vector<Tensor*> victims =
      residency_.residents().FirstToLeave(bytes, [&](const Tensor& tensor) {
        const Copy& copy = *tensor.at(tier);
        if (copy.pins == 0) return residency_.MayLeave(tensor);
        return asks && MayAsk(tensor, copy) &&
               !absl::c_linear_search(besides, &tensor);
      });
  const int64_t free_bytes = FreeBytes(residency_.tier());
  for (Tensor* const victim : victims) {
    if (victim->at(tier)->pins > 0) {
      residency_.residents().SetAside(*victim);
      pins_.AskForRoom(*victim, tier);
    } else if (residency_.Evict(*victim)) {
      leaving->push_back(victim);
    }
  }
  return FreeBytes(residency_.tier()) != free_bytes;
}

void ByteRoom::AskFor(int64_t bytes) {
  const int64_t coming = std::min(bytes, coming_bytes_);
  coming_bytes_ -= coming;
  const TierId tier = residency_.id();
  const std::vector<Tensor*> victims = residency_.residents().FirstToLeave(
      bytes - coming,
      [&](const Tensor& tensor) { return MayAsk(tensor, *tensor.at(tier)); });
  for (Tensor* const victim : victims) {
    residency_.residents().SetAside(*victim);
    pins_.AskForRoom(*victim, tier);
  }
}

}  // namespace terrace
