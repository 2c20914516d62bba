#include "runtime/make_core_device.h"

#include <functional>
#include <utility>

#include "base/status_macros.h"
#include "tiers/device/device_space.h"
#include "tiers/device/device_tier.h"
#include "tiers/device/device_transport.h"

namespace terrace {

absl::StatusOr<CoreDevice> MakeCoreDevice(
    std::shared_ptr<Device> device, const TierSpec& spec, Clock& clock,
    std::unique_ptr<EvictionPolicy> eviction) {
  TERRACE_ASSIGN_OR_RETURN(
      const std::shared_ptr<DeviceSpace> space,
      DeviceSpace::Create(std::move(device), spec.budget_bytes));
  CoreDevice made;
  made.make_tier = [spec, space](TierId id) {
    return std::make_unique<DeviceTier>(id, spec, space);
  };
  made.make_transport = [space, &clock](TierId id, std::function<void()> wake) {
    return std::make_unique<DeviceTransport>(id, space, clock, std::move(wake));
  };
  made.eviction = std::move(eviction);
  made.address = reinterpret_cast<uintptr_t>(space->At(0));
  return made;
}

}  // namespace terrace
