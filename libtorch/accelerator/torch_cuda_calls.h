// What LibTorch's CUDA has beyond LibTorch's device-independent interfaces, as
// one table of C functions: what the module libterrace_torch_cuda-2.11.so,
// whose name has the LibTorch that it is for, answers its one entry with. The
// library has no symbol of CUDA; it opens the module when it is asked for
// (torch_cuda.h). Tests have a table of their own.
//
// Every call returns CUDA's code, 0 if it went well, and works on the device of
// that number, whichever is current in the calling thread, which stays so. A
// stream is as LibTorch numbers it. Thread-safe, as the runtime is.
#pragma once

#include <stdint.h>

#include "kernels/cuda/cuda_calls.h"

extern "C" {

struct TerraceTorchCudaCalls {
  uint32_t version;  // TERRACE_TORCH_CUDA_CALLS_VERSION
  // Of the runtime that LibTorch uses; an event is destroyed by it.
  const struct TerraceCudaCalls* runtime;

  // From here on LibTorch's allocator calls `relieve`, under its lock, whenever
  // its cache misses: whether it should look again. Null: nobody any more.
  // Returns 0, and nothing changes, where somebody else is called.
  int (*set_relief)(int (*relieve)(void));

  int (*is_capturing)(int device, int64_t stream, int* is_capturing);

  // A thread that waits for it sleeps, and does not turn.
  int (*make_sleeping_event)(int device, void** event);
  int (*record)(int device, void* event, int64_t stream);
  int (*wait)(int device, void* event);
};

#define TERRACE_TORCH_CUDA_CALLS_VERSION 1u
#define TERRACE_TORCH_CUDA_CALLS_ENTRY "terrace_torch_cuda_calls"

// The module's one entry; the table stays for ever.
const struct TerraceTorchCudaCalls* terrace_torch_cuda_calls(void);

}  // extern "C"
