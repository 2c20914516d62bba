#include "runtime/residency/passage/memory_passage.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "terrace/runtime.h"

namespace terrace {

int64_t BytesOf(absl::Span<Tensor* const> tensors) {
  int64_t bytes = 0;
  for (const Tensor* const each : tensors) {
    bytes += ResidentBytes(each->spec.size_bytes);
  }
  return bytes;
}
std::vector<Tensor*> MemoryPassage::Passing(absl::Span<const Want> wants,
                                            absl::Span<Tensor* const> tensors,
                                            TierId to) {
  std::vector<Tensor*> passing;
  if (!IsDevice(to)) return passing;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tensor& tensor = *tensors[i];
    if (tensor.at(to) != nullptr) continue;
    if (wants[i].access == Access::kOverwrite) continue;
    const Copy* const source = tensor.SourceFor(to);
    if (source == nullptr || IsMemory(source->place.tier())) continue;
    passing.push_back(&tensor);
  }
  return passing;
}

absl::Status MemoryPassage::Check(absl::Span<Tensor* const> tensors,
                                  absl::Span<Tensor* const> passing,
                                  const TierResidency& device) const {
  const int64_t bytes = BytesOf(tensors);
  const int64_t capacity = device.tier().usage().capacity_bytes;
  if (bytes > capacity) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a group of ", bytes, " bytes, '", tensors.front()->spec.name,
        "' among them: the budget of ", device.tier().name(), " is ", capacity,
        ", and nothing of a device is beyond it"));
  }
  const int64_t passing_bytes = BytesOf(passing);
  const TierResidency& memory = parts_.working->at(kDramTier);
  const int64_t budget = memory.tier().usage().capacity_bytes;
  const Windows& windows = memory.windows();
  const int64_t taken = windows.open_bytes() - windows.promised_bytes() +
                        parts_.staging->open_bytes();
  if (passing_bytes <= budget - taken) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "a group's tensors of ", passing_bytes, " bytes, '",
      passing.front()->spec.name, "' among them, pass through memory to ",
      device.tier().name(), ": windows take ", taken,
      " bytes of its budget of ", budget));
}

ByteRoom::Rooms MemoryPassage::InOrder(absl::Span<Tensor* const> tensors,
                                       absl::Span<Tensor* const> passing,
                                       ByteRoom::Rooms rooms) {
  ByteRoom::Rooms all;
  all.resize(tensors.size());
  size_t next = 0;
  for (size_t i = 0; i < tensors.size() && next < passing.size(); ++i) {
    if (tensors[i] == passing[next]) all[i] = std::move(rooms[next++]);
  }
  return all;
}

Tensor* MemoryPassage::LowerAll(ByteRoom& room, uint64_t before,
                                std::vector<QueueError>* errors) const {
  std::vector<Lowering>& lowering = parts_.write_back->lowering();
  Tensor* first = nullptr;
  for (size_t i = 0; i < lowering.size();) {
    Lowering& each = lowering[i];
    if (each.seeker.number == 0) {
      each.seeker.number = parts_.next_number();
    }
    if (each.is_served || each.seeker.number >= before) {
      ++i;
    } else if (Lower(each, room, errors)) {
      lowering.erase(lowering.begin() + static_cast<ptrdiff_t>(i));
    } else {
      each.is_served = true;
      room.KeepFor(each.seeker);
      if (first == nullptr) first = each.tensor;
      ++i;
    }
  }
  return first;
}

bool MemoryPassage::Lower(Lowering& lowering, ByteRoom& room,
                          std::vector<QueueError>* errors) const {
  Tensor& tensor = *lowering.tensor;
  if (!parts_.write_back->MayComeDown(tensor)) {
    parts_.write_back->OnDirty(tensor);
    return true;
  }
  ByteRoom::Rooms rooms;
  std::vector<Tensor*> leaving;
  Tensor* const one[] = {&tensor};
  const bool found = !room.residency().windows().holds_room() &&
                     room.Find(one, &lowering.seeker, &rooms, &leaving);
  parts_.write_back->StartLeaving(&leaving, errors);
  if (!found) {
    return parts_.write_back->PassDown(
        tensor,
        parts_.staging->Take(StagingRoom::Way::kDown,
                             ResidentBytes(tensor.spec.size_bytes)),
        errors);
  }
  parts_.write_back->ComeDownInto(tensor, std::move(rooms.front()));
  return true;
}

bool MemoryPassage::AnyComesDown() const {
  const std::vector<Lowering>& lowering = parts_.write_back->lowering();
  for (const TierResidency* const each : parts_.working->devices()) {
    if (!each->residents().is_ranked()) continue;
    const auto waiting = std::count_if(
        lowering.begin(), lowering.end(), [each](const Lowering& waits) {
          return each->residents().IsLeaving(*waits.tensor);
        });
    if (each->residents().leaving() > waiting) return true;
  }
  return false;
}

}  // namespace terrace
