// A device in memory that costs next to no processor: of each 64 KiB block it
// moves one cache line. Under a paced engine it stands for a device of any
// rate on any machine; a whole copy of 4 GiB/s each way takes more than a core,
// and then the copying is measured in place of the order.
#pragma once

#include <cstdint>
#include <memory>

#include "aio/engine.h"
#include "base/clock.h"

namespace terrace::bench {

// One file, 0, of `size_bytes`: offsets begin again behind it. Completes at
// once, in order. `clock` must outlive it.
std::unique_ptr<IoEngine> MakeLightDevice(int64_t size_bytes, Clock& clock);

}  // namespace terrace::bench
