#include "libtorch/accelerator/device_extras.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/mutex.h"
#include "libtorch/accelerator/torch_cuda.h"

namespace terrace {
namespace {

struct Registry {
  Mutex mutex;
  absl::flat_hash_map<c10::DeviceType, std::shared_ptr<DeviceExtras>> extras
      ABSL_GUARDED_BY(mutex);
};

// What is registered with one device of CUDA's is so with all.
class CudaExtras final : public DeviceExtras {
 public:
  explicit CudaExtras(TorchCuda cuda) : cuda_(cuda) {}
  absl::Status RegisterHost(absl::Span<std::byte> range) override {
    return cuda_.RegisterHost(/*device=*/0, range);
  }
  void UnregisterHost(std::byte* begin) override {
    cuda_.UnregisterHost(/*device=*/0, begin).IgnoreError();
  }

 private:
  const TorchCuda cuda_;
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
  if (found != registry.extras.end()) return found->second;
  if (type != c10::DeviceType::CUDA) return nullptr;
  const absl::StatusOr<TorchCuda> cuda = TorchCuda::Open();
  if (!cuda.ok()) return nullptr;
  return registry.extras[type] = std::make_shared<CudaExtras>(*cuda);
}

}  // namespace terrace
