// terrace-bench mover: what the mover costs by itself, with a thousand tensors
// and with a hundred thousand: registration, memory for each, and its thread's
// time for each transfer of one page. The engine's threads move the bytes. Then
// its thread's time for a request beside ten and ten thousand idle queues.
#pragma once

#include "absl/status/status.h"
#include "bench/harness.h"

namespace terrace::bench {

absl::Status RunMoverBenchmark(const Flags& flags);

}  // namespace terrace::bench
