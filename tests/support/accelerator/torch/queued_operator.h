// An operator with a CPU kernel, on a device: its outputs are shaped by the
// Meta kernel and allocated at once, and the CPU kernel is given to the current
// stream. Where results depend on data, the CPU waits for the stream and they
// are shaped by what the kernel made. Where there is no Meta kernel they are
// too, but nothing is known to be over by that, as no real device would wait.
//
// What the Meta kernel objects to is thrown at once; what the CPU kernel does
// comes out of the next wait. A random operator's numbers depend on the order
// of calls (accelerator_generator.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace terrace {

// LibTorch's boxed kernel.
void QueueOperator(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace terrace
