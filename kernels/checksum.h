// XXH3-64 (seed 0) of bytes: what an extent's header stores. Finds what a disk
// or a bus changed, not what an adversary did. About as fast as memory.
//
// Thread-safe, pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace {

uint64_t Checksum(const void* data, size_t size_bytes);

}  // namespace terrace
