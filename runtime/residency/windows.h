// All windows of one working tier. One whose queue is closed stays until the
// last of its slots is empty. Mover only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "runtime/residency/window.h"
#include "tiers/reservation.h"

namespace terrace {

class Windows {
 public:
  // All of `range`; stays where it is until it is closed and empty.
  Window* Open(Reservation range, int64_t stride, int slots);
  void Close(Window& window);
  // Those closed that are empty go, once `leave` has dropped what may leave.
  void Sweep(absl::FunctionRef<void(const Window&)> leave);

  // That room is a late fetch's from here on, if it is a slot.
  void Disown(const Reservation& room, const absl::Status& why);

  bool closing() const { return !closing_.empty(); }
  int64_t size_bytes() const;
  int64_t open_bytes() const;  // of those not closed

 private:
  std::vector<std::unique_ptr<Window>> windows_;
  std::vector<Window*> closing_;  // waiting for their slots
};

}  // namespace terrace
