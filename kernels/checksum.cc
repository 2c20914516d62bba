#include "kernels/checksum.h"

#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // chooses AVX2 or AVX-512 at run time
#else
#define XXH_INLINE_ALL  // the vector code of the build's own target
#include <xxhash.h>
#endif

namespace terrace {

uint64_t Checksum(const void* data, size_t size_bytes) {
#if defined(__x86_64__)
  return XXH3_64bits_dispatch(data, size_bytes);
#else
  return XXH3_64bits(data, size_bytes);
#endif
}

}  // namespace terrace
