#include "runtime/residency/window.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {

Reservation Window::Take(int slot, Tensor& owner, int64_t size_bytes) {
  Slot& taken = slots_[static_cast<size_t>(slot)];
  TERRACE_CHECK(!taken.taken && size_bytes <= stride_);
  taken.taken = true;
  taken.owner = &owner;
  return {this, {range_.extent().offset + slot * stride_, size_bytes}};
}

void Window::Disown(const Extent& extent, absl::Status why) {
  Slot& slot = slots_[IndexOf(extent)];
  TERRACE_CHECK(slot.taken);
  slot.owner = nullptr;
  slot.late = std::move(why);
}

void Window::NoteChange() {
  if (!closing_ || is_changed_) return;
  is_changed_ = true;
  changed_.push_back(this);
}

bool Window::empty() const {
  return std::none_of(slots_.begin(), slots_.end(),
                      [](const Slot& slot) { return slot.taken; });
}

}  // namespace terrace
