#include "runtime/residency/windows.h"

#include <utility>

namespace terrace {

Window* Windows::Open(Reservation range, int64_t stride, int slots,
                      StagingRoom::Lease staging) {
  Window* const window = windows_
                             .insert(std::make_unique<Window>(
                                 tier_, std::move(range), stride, slots,
                                 &changed_, std::move(staging)))
                             .first->get();
  open_.insert(window);
  open_slots_ += slots;
  return window;
}

Reservation Windows::OpenBeyond(Reservation range, Tensor& tensor) {
  const int64_t bytes = range.extent().size_bytes;
  Window* const window =
      windows_
          .insert(std::make_unique<Window>(tier_, std::move(range), bytes,
                                           /*slots=*/1, &changed_))
          .first->get();
  window->SetBeyond();
  ++beyond_;
  Reservation slot = window->Take(0, tensor, bytes);
  window->Close();
  return slot;
}

Reservation Windows::TakeAt(const Extent& range, Tensor& tensor) {
  for (const auto& window : windows_) {
    if (window->is_beyond()) continue;
    const int64_t offset = range.offset - window->room().offset;
    if (offset < 0 || range.end() > window->room().end()) continue;
    const auto slot = static_cast<int>(offset / window->stride());
    const bool fits = offset % window->stride() == 0 && !window->taken(slot) &&
                      range.size_bytes <= window->stride();
    if (fits) return window->Take(slot, tensor, range.size_bytes);
  }
  return {};
}

void Windows::Close(Window& window) {
  window.Close();
  if (open_.erase(&window) > 0) open_slots_ -= window.slots();
}

void Windows::OnUsed(const Window* window) {
  if (window == nullptr || !window->closing()) return;
  (*windows_.find(window))->NoteChange();
}

void Windows::Sweep(absl::FunctionRef<void(const Window&)> leave) {
  for (Window* const window : std::exchange(changed_, {})) {
    leave(*window);
    window->ForgetChange();
    if (!window->empty()) continue;
    if (window->is_beyond()) --beyond_;
    windows_.erase(windows_.find(window));
  }
}

bool Windows::AnyClosing(absl::FunctionRef<bool(const Window&)> is) const {
  if (!closing()) return false;
  for (const auto& window : windows_) {
    if (window->closing() && !window->is_beyond() && is(*window)) return true;
  }
  return false;
}

std::vector<Extent> Windows::ClosingRooms() const {
  std::vector<Extent> rooms;
  if (!closing()) return rooms;
  for (const auto& window : windows_) {
    if (!window->closing() || window->is_beyond()) continue;
    rooms.push_back(window->room());
  }
  return rooms;
}

std::vector<Extent> Windows::Rooms() const {
  std::vector<Extent> rooms;
  for (const auto& window : windows_) {
    if (!window->is_beyond()) rooms.push_back(window->room());
  }
  return rooms;
}

void Windows::Disown(const Reservation& room, const absl::Status& why) {
  for (const auto& window : windows_) {
    if (window.get() == room.from()) window->Disown(room.extent(), why);
  }
}

int64_t Windows::size_bytes() const {
  int64_t bytes = 0;
  for (const auto& window : windows_) {
    if (!window->is_beyond()) bytes += window->size_bytes();
  }
  return bytes;
}

int64_t Windows::open_bytes() const {
  int64_t bytes = promised_bytes_;
  for (const Window* const window : open_) bytes += window->size_bytes();
  return bytes;
}

}  // namespace terrace
