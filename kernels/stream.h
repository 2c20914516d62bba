// Loops that only move memory: what the speed of kernels is compared with. They
// have a kernel's streams and its ratio of reads to writes, and one bit
// operation instead of its arithmetic.
//
// Thread-safe: each call touches only its arguments. Arrays of `count` elements
// of 4 bytes that do not overlap; the bits are treated as integers.
#pragma once

#include <cstdint>

namespace terrace {

enum class StreamKind : uint8_t {
  kPlain,        // normal stores
  kPrefetched,   // normal stores, lines asked for as the update asks for them
  kNonTemporal,  // stores past the cache; plain where not aligned to 64 bytes
};

// Reads p, g, m and v and writes p, m and v, 28 bytes an element: each written
// array becomes its exclusive or with g, so that a second call restores it.
void StreamLikeAdam(StreamKind kind, float* p, const float* g, float* m,
                    float* v, int64_t count);

// Reads `count` values, 4 bytes an element, as the norm and the checksum do.
// Returns the exclusive or of all. kNonTemporal is plain.
uint32_t StreamRead(StreamKind kind, const uint32_t* values, int64_t count);

// a = b + scale * c: STREAM's triad (McCalpin 1995), counted as 12 bytes an
// element.
void StreamTriad(float* a, const float* b, const float* c, float scale,
                 int64_t count);

}  // namespace terrace
