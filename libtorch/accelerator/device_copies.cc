#include "libtorch/accelerator/device_copies.h"

#include <iterator>
#include <utility>

#include "absl/status/statusor.h"

namespace terrace {

void DeviceCopies::Add(std::shared_ptr<DeviceEvent> ended,
                       std::unique_ptr<HostBytes> held) {
  MutexLock lock(mutex_);
  copies_.push_back({std::move(ended), std::move(held)});
}

absl::Status DeviceCopies::Settle(size_t most) {
  // Events cannot be asked then.
  if (memory_.IsCapturing(memory_.CurrentStream())) return absl::OkStatus();
  std::vector<Copy> copies;
  {
    MutexLock lock(mutex_);
    copies.swap(copies_);
  }
  if (copies.empty()) return absl::OkStatus();
  absl::Status first;
  std::vector<Copy> left;
  for (Copy& copy : copies) {
    const absl::StatusOr<bool> is_done = memory_.IsDone(*copy.ended);
    first.Update(is_done.status());
    if (is_done.ok() && !*is_done) left.push_back(std::move(copy));
  }
  const size_t beyond = left.size() > most ? left.size() - most : 0;
  for (size_t i = 0; i < beyond; ++i) {
    first.Update(memory_.Wait(*left[i].ended));
  }
  MutexLock lock(mutex_);
  copies_.insert(copies_.begin(),
                 std::make_move_iterator(left.begin() +
                                         static_cast<std::ptrdiff_t>(beyond)),
                 std::make_move_iterator(left.end()));
  return first;  // `copies` and `left` end after the lock
}

size_t DeviceCopies::count() const {
  MutexLock lock(mutex_);
  return copies_.size();
}

}  // namespace terrace
