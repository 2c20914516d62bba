// Where LibTorch's allocator asks for CUDA memory, of any device: the one port
// of the process, from when this library (terrace_torch_cuda) is loaded on. It
// is compiled where LibTorch's CUDA and the runtime's headers are; nothing else
// of Terrace knows them, and the CPU's library links none of it. Thread-safe.
#pragma once

#include "libtorch/accelerator/relief_port.h"

namespace terrace {

ReliefPort& CudaRelief();

}  // namespace terrace
