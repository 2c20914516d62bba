#include "libtorch/accelerator/device_room.h"

#include <algorithm>

namespace terrace {
namespace {

void RaiseTo(std::atomic<int64_t>& most, int64_t value) {
  int64_t before = most.load();
  while (before < value && !most.compare_exchange_weak(before, value)) {
  }
}

}  // namespace

int64_t DeviceRoom::TensorBytes(int64_t held_bytes) {
  const StreamedDevice::Usage usage = memory_.usage();
  RaiseTo(others_now_bytes_, usage.allocated_bytes - held_bytes);
  const int64_t others =
      std::max(others_now_bytes_.load(), others_before_bytes_.load());
  return std::min(budget_bytes_, usage.limit_bytes - others);
}

void DeviceRoom::BeginStep() {
  others_before_bytes_.store(others_now_bytes_.exchange(0));
}

bool DeviceRoom::HasRoomForMiss() {
  const StreamedDevice::Usage usage = memory_.usage();
  const int64_t before = last_reserved_bytes_.exchange(usage.reserved_bytes);
  if (before < usage.reserved_bytes) {
    RaiseTo(most_wanted_bytes_, usage.reserved_bytes - before);
  }
  return usage.reserved_bytes <= usage.limit_bytes - most_wanted_bytes();
}

}  // namespace terrace
