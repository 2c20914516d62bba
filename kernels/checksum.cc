#include "kernels/checksum.h"

#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // chooses AVX2 or AVX-512 at run time
#else
#define XXH_INLINE_ALL  // the vector code of the build's own target
#include <xxhash.h>
#endif

namespace terrace {

#if defined(__x86_64__)
namespace {

// The library's vector paths return with the upper halves of the registers in
// use. Scalar code that mixes encodings, as std::fma in a loop does, then runs
// 200 times slower on this thread.
__attribute__((target("avx"))) void ClearUpperHalves() {
  __builtin_ia32_vzeroupper();
}

}  // namespace
#endif

uint64_t Checksum(const void* data, size_t size_bytes) {
#if defined(__x86_64__)
  const uint64_t hash = XXH3_64bits_dispatch(data, size_bytes);
  if (__builtin_cpu_supports("avx")) ClearUpperHalves();
  return hash;
#else
  return XXH3_64bits(data, size_bytes);
#endif
}

}  // namespace terrace
