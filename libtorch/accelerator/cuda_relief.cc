#include "libtorch/accelerator/cuda_relief.h"

#include <c10/cuda/CUDACachingAllocator.h>

namespace terrace {
namespace {

constinit ReliefPort port;

// Made anew for each call, under the allocator's lock.
class TerraceRelief final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override { return port.Relieve(); }
};

}  // namespace

ReliefPort& CudaRelief() { return port; }

}  // namespace terrace

namespace c10 {

REGISTER_FREE_MEMORY_CALLBACK(terrace_relief, terrace::TerraceRelief)

}  // namespace c10
