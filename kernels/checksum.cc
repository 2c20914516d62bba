#include "kernels/checksum.h"

#include <algorithm>

#include "base/threads/own_loop.h"

#if defined(__x86_64__)
#define XXH_STATIC_LINKING_ONLY  // the size of a state
#include <xxh_x86dispatch.h>     // chooses AVX2 or AVX-512 at run time
#else
#define XXH_INLINE_ALL  // the vector code of the build's own target
#include <xxhash.h>
#endif

namespace terrace {
namespace {

// A fiftieth of a second at memory's speed.
constexpr size_t kPieceBytes = size_t{64} << 20;

#if defined(__x86_64__)

// The library's vector paths return with the upper halves of the registers in
// use. Scalar code that mixes encodings, as std::fma in a loop does, then runs
// 200 times slower on this thread.
__attribute__((target("avx"))) void ClearUpperHalves() {
  __builtin_ia32_vzeroupper();
}

uint64_t HashOf(const void* data, size_t size_bytes) {
  const uint64_t hash = XXH3_64bits_dispatch(data, size_bytes);
  if (__builtin_cpu_supports("avx")) ClearUpperHalves();
  return hash;
}

void Add(XXH3_state_t& state, const void* data, size_t size_bytes) {
  XXH3_64bits_update_dispatch(&state, data, size_bytes);
  if (__builtin_cpu_supports("avx")) ClearUpperHalves();
}
#else
uint64_t HashOf(const void* data, size_t size_bytes) {
  return XXH3_64bits(data, size_bytes);
}

void Add(XXH3_state_t& state, const void* data, size_t size_bytes) {
  XXH3_64bits_update(&state, data, size_bytes);
}
#endif

}  // namespace

uint64_t Checksum(const void* data, size_t size_bytes) {
  if (size_bytes <= kPieceBytes) return HashOf(data, size_bytes);
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  const auto* next = static_cast<const std::byte*>(data);
  for (size_t left = size_bytes; left > 0;) {
    const size_t piece = std::min(left, kPieceBytes);
    Add(state, next, piece);
    OwnLoop::Beat();
    next += piece;
    left -= piece;
  }
  return XXH3_64bits_digest(&state);
}

}  // namespace terrace
