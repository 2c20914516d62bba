// Modules for LibTorch's CUDA of versions that nothing knows.
#include "libtorch/accelerator/torch_cuda_calls.h"

namespace {

constexpr TerraceCudaCalls kRuntime = {.version = 98};
constexpr TerraceTorchCudaCalls kCalls = {.version = TERRACE_TORCH_VERSION_HERE,
                                          .runtime = &kRuntime};

}  // namespace

extern "C" const TerraceTorchCudaCalls* terrace_torch_cuda_calls(void) {
  return &kCalls;
}
