#include "tiers/device/device_space.h"

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/io_fault.h"
#include "base/status_macros.h"

namespace terrace {

absl::StatusOr<std::shared_ptr<DeviceSpace>> DeviceSpace::Create(
    std::shared_ptr<Device> device, int64_t size_bytes) {
  const int64_t whole = RoundDown(size_bytes, kBlockBytes);
  if (whole <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(device->name(), ": a tier of ", size_bytes,
                     " bytes; it needs ", kBlockBytes, " at least"));
  }
  absl::StatusOr<DeviceMemory> memory = device->Allocate(whole);
  if (!memory.ok()) {
    return Reworded(memory.status(),
                    absl::StrCat("a tier of ", whole,
                                 " bytes: ", memory.status().message()));
  }
  TERRACE_ASSIGN_OR_RETURN(OwnedStream to_host, device->MakeStream());
  TERRACE_ASSIGN_OR_RETURN(OwnedStream to_device, device->MakeStream());
  return std::shared_ptr<DeviceSpace>(
      new DeviceSpace(std::move(device), *std::move(memory), whole,
                      std::move(to_host), std::move(to_device)));
}

}  // namespace terrace
