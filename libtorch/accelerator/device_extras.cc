#include "libtorch/accelerator/device_extras.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/mutex.h"

namespace terrace {
namespace {

struct Registry {
  Mutex mutex;
  absl::flat_hash_map<c10::DeviceType, std::shared_ptr<DeviceExtras>> extras
      ABSL_GUARDED_BY(mutex);
};

// It outlives everything static, as devices may.
Registry& TheRegistry() {
  static Registry& registry = *new Registry();
  return registry;
}

}  // namespace

void SetDeviceExtras(c10::DeviceType type,
                     std::shared_ptr<DeviceExtras> extras) {
  Registry& registry = TheRegistry();
  MutexLock lock(registry.mutex);
  registry.extras[type].swap(extras);
}

std::shared_ptr<DeviceExtras> ExtrasOf(c10::DeviceType type) {
  Registry& registry = TheRegistry();
  MutexLock lock(registry.mutex);
  const auto found = registry.extras.find(type);
  return found == registry.extras.end() ? nullptr : found->second;
}

}  // namespace terrace
