// A module of a version that nothing knows.
#include "kernels/cuda/cuda_calls.h"

namespace {

constexpr TerraceCudaCalls kCalls = {.version = 99};

}  // namespace

extern "C" const TerraceCudaCalls* terrace_cuda_calls(void) { return &kCalls; }
