#include "runtime/residency/windows.h"

#include <utility>

namespace terrace {

Window* Windows::Open(Reservation range, int64_t stride, int slots) {
  windows_.push_back(std::make_unique<Window>(std::move(range), stride, slots));
  return windows_.back().get();
}

void Windows::Close(Window& window) {
  window.Close();
  closing_.push_back(&window);
}

void Windows::Sweep(absl::FunctionRef<void(const Window&)> leave) {
  std::erase_if(closing_, [&](const Window* window) {
    leave(*window);
    if (!window->empty()) return false;
    std::erase_if(windows_,
                  [window](const auto& each) { return each.get() == window; });
    return true;
  });
}

void Windows::Disown(const Reservation& room, const absl::Status& why) {
  for (const auto& window : windows_) {
    if (window.get() == room.from()) window->Disown(room.extent(), why);
  }
}

int64_t Windows::size_bytes() const {
  int64_t bytes = 0;
  for (const auto& window : windows_) bytes += window->size_bytes();
  return bytes;
}

int64_t Windows::open_bytes() const {
  int64_t bytes = 0;
  for (const auto& window : windows_) {
    if (!window->closing()) bytes += window->size_bytes();
  }
  return bytes;
}

}  // namespace terrace
