#include "runtime/mover/restoration.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

absl::Status Wrong(const TensorImage& image, const char* why) {
  return absl::DataLossError(absl::StrCat("tensor '", image.spec.name,
                                          "' of the runtime before: ", why));
}

bool Fits(const TensorImage& image, const Extent& extent) {
  return image.spec.size_bytes > 0 &&
         extent.size_bytes >= ResidentBytes(image.spec.size_bytes);
}

}  // namespace

absl::Status Restoration::Restore(const RestoreRequest& request) {
  const RuntimeImage& image = request.image;
  for (const Extent& each : image.lent) {
    parts_.heartbeat->Beat();
    TERRACE_RETURN_IF_ERROR(parts_.lent->Restore(each));
  }
  TERRACE_RETURN_IF_ERROR(RestoreQueues(request));
  absl::flat_hash_set<int64_t> pinned;
  for (const PinImage& each : image.pins) pinned.insert(each.tensor.value);
  // What is beyond the budget comes last: each of it is a window.
  const int64_t budget = parts_.memory->tier().usage().capacity_bytes;
  for (const bool is_beyond : {false, true}) {
    for (const TensorImage& each : image.tensors) {
      parts_.heartbeat->Beat();
      if ((each.memory.extent.end() > budget) != is_beyond) continue;
      TERRACE_RETURN_IF_ERROR(
          RestoreTensor(each, pinned.contains(each.id.value)));
    }
  }
  for (const PinImage& each : image.pins) {
    parts_.heartbeat->Beat();
    TERRACE_RETURN_IF_ERROR(RestorePin(each, request.client));
  }
  parts_.spill->EndTakeAt();
  for (const PinImage& each : image.pins) {
    parts_.customers->NoteIfEnded(*parts_.customers->Find(each.queue));
  }
  parts_.table->SkipTo(image.next_tensor);
  parts_.pins->SkipTo(image.next_token);
  for (const TensorImage& each : image.tensors) {
    parts_.heartbeat->Beat();
    Tensor& tensor = *parts_.table->Find(each.id);
    const bool goes_down = tensor.Dirty(kDramTier) && tensor.Idle(kDramTier) &&
                           parts_.memory->WindowOf(tensor) != nullptr;
    if (goes_down) parts_.write_back->OnDirty(tensor);
  }
  return absl::OkStatus();
}

// In the order of their numbers, as these only rise: those that are open, and
// those of which there are pins alone.
absl::Status Restoration::RestoreQueues(const RestoreRequest& request) {
  std::map<int64_t, const QueueImage*> queues;
  for (const PinImage& each : request.image.pins) queues[each.queue] = nullptr;
  for (const QueueImage& each : request.image.queues) queues[each.id] = &each;
  for (const auto& [id, queue] : queues) {
    if (id < 0) return absl::DataLossError("a queue without a number");
    parts_.customers->SkipTo(id);
    if (queue == nullptr) {
      parts_.customers->RestoreClosed(kDramTier, request.client);
      continue;
    }
    if (queue->is_of_bytes()) {
      parts_.byte_admission->Begin(*parts_.memory, queue->window_bytes,
                                   request.client);
      if (queue->hold_at_most >= 0) {
        parts_.byte_pins->HoldAtMost(id, queue->hold_at_most);
      }
    } else {
      TERRACE_RETURN_IF_ERROR(OpenWindow(*queue, request.client));
    }
    if (!queue->step.has_value()) continue;
    parts_.customers->FindOpen(id)->step = queue->step;
    parts_.planner->BeginStep(id);
  }
  parts_.customers->SkipTo(request.image.next_queue);
  return absl::OkStatus();
}

absl::Status Restoration::OpenWindow(const QueueImage& queue, ClientId client) {
  Reservation range = parts_.memory->tier().TakeAt(queue.window);
  const bool is_whole = !range.empty() && queue.slots > 0 &&
                        queue.stride() * queue.slots == queue.window.size_bytes;
  if (!is_whole) {
    return absl::DataLossError(
        absl::StrCat("queue ", queue.id, " of the runtime before: its window ",
                     "is not free"));
  }
  Window* const window = parts_.memory->windows().Open(
      std::move(range), queue.stride(), queue.slots);
  parts_.planner->Open(parts_.customers->Open(*window, client).id);
  return absl::OkStatus();
}

absl::StatusOr<Reservation> Restoration::PlaceOf(
    const TensorImage& image) const {
  const CopyImage& below = image.below;
  if (below.tier == kNoTier) return Reservation();
  const auto& ids = parts_.resting->ids();
  if (std::find(ids.begin(), ids.end(), below.tier) == ids.end()) {
    return Wrong(image, "its tier is not there");
  }
  Reservation place = parts_.resting->at(below.tier).TakeAt(below.extent);
  if (place.empty() || !Fits(image, below.extent)) {
    return Wrong(image, "its place below is another's");
  }
  return place;
}

absl::StatusOr<Reservation> Restoration::RoomOf(const TensorImage& image,
                                                Tensor& tensor) const {
  const Extent& range = image.memory.extent;
  if (image.memory.tier == kNoTier) return Reservation();
  const int64_t budget = parts_.memory->tier().usage().capacity_bytes;
  Reservation room;
  if (range.offset >= 0 && range.end() <= budget) {
    room = parts_.memory->windows().TakeAt(range, tensor);
    if (room.empty()) {
      room = parts_.memory->tier().TakeAt(range);
      if (!room.empty()) parts_.memory->residents().Add(tensor, range);
    }
  } else {
    Reservation beyond = parts_.spill->TakeAt(range);
    if (!beyond.empty()) {
      room = parts_.memory->windows().OpenBeyond(std::move(beyond), tensor);
    }
  }
  if (room.empty() || !Fits(image, range)) {
    return Wrong(image, "its memory is another's");
  }
  return room;
}

absl::Status Restoration::RestoreTensor(TensorImage image, bool is_pinned) {
  // Nobody has what was to be written, nor what may have been.
  const bool is_whole = image.memory.generation > 0;
  if (!is_whole && !is_pinned) image.memory = {};
  if (is_whole && image.memory.generation != image.generation) {
    return Wrong(image, "its copy in memory is of another time");
  }
  if (image.below.generation > image.generation) {
    return Wrong(image, "its copy below is newer than the newest");
  }
  image.is_lost |= image.generation > 0 && !is_whole &&
                   image.below.generation != image.generation;
  Tensor* const tensor = parts_.table->Restore(image.id, image.spec);
  if (tensor == nullptr) return Wrong(image, "there are two of it");
  TERRACE_ASSIGN_OR_RETURN(Reservation place, PlaceOf(image));
  TERRACE_ASSIGN_OR_RETURN(Reservation room, RoomOf(image, *tensor));
  tensor->Restore(image, std::move(place), std::move(room));
  parts_.table->Admit(*tensor);
  return absl::OkStatus();
}

absl::Status Restoration::RestorePin(const PinImage& pin, ClientId client) {
  Tensor* const tensor = parts_.table->Find(pin.tensor);
  const auto wrong = [&pin](const char* why) {
    return absl::DataLossError(
        absl::StrCat("pin ", pin.token, " of the runtime before: ", why));
  };
  if (ClientOfToken(pin.token) != client) return wrong("another client's");
  if (tensor == nullptr) return wrong("its tensor is not there");
  if (!tensor->Delivered(kDramTier)) {
    // It was discarded, and had all but ended.
    if (parts_.keeper != nullptr) parts_.keeper->OnPinEnd(pin.token);
    return absl::OkStatus();
  }
  const bool excludes = tensor->write_pinned() ||
                        (pin.access != Access::kRead && tensor->pins() > 0);
  if (excludes) return wrong("another excludes it");
  tensor->Hold(kDramTier, pin.access);
  if (!parts_.pins->Restore(*tensor, kDramTier, pin)) {
    return wrong("there are two of it");
  }
  Customer& customer = *parts_.customers->Find(pin.queue);
  ++customer.held_pins;
  if (!customer.bytes.has_value()) return absl::OkStatus();
  parts_.byte_pins->OnGranted(pin.token, *tensor, kDramTier, customer.id);
  if (pin.is_recalled) {
    parts_.byte_pins->RestoreAsked(pin.token, pin.is_kept);
  } else if (parts_.memory->WindowOf(*tensor) != nullptr) {
    parts_.byte_pins->Ask(pin.token);
  }
  return absl::OkStatus();
}

}  // namespace terrace
