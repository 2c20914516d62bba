// XXH3-64 (seed 0) of bytes: what an extent's header stores. Finds what a disk
// or a bus changed, not what an adversary did. About as fast as memory.
//
// Thread-safe, pure; the loop of the thread that calls it (base/threads/) turns
// meanwhile, each 64 MiB.
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace {

uint64_t Checksum(const void* data, size_t size_bytes);

}  // namespace terrace
