// One 16-bit value to and from fp32, on bits alone: no instruction set, no
// floating-point environment. See terrace/adam.h for what a NaN becomes.
#pragma once

#include <bit>
#include <cstdint>

namespace terrace::internal {

inline float WidenBFloat16(uint16_t bits) {
  uint32_t wide = static_cast<uint32_t>(bits) << 16;
  return std::bit_cast<float>(wide);
}

inline uint16_t NarrowBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FC0;
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float WidenFloat16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1F;
  const uint32_t fraction = bits & 0x3FF;
  uint32_t wide;
  if (exponent == 0x1F) {  // infinite, or a NaN that is made quiet
    wide = 0x7F800000 | (fraction << 13) | (fraction != 0 ? 0x400000 : 0);
  } else if (exponent != 0) {
    wide = ((exponent + (127 - 15)) << 23) | (fraction << 13);
  } else if (fraction == 0) {
    wide = 0;
  } else {  // subnormal, fraction * 2^-24: normal in fp32
    const int shift = std::countl_zero(fraction) - 21;  // to bit 10
    wide = (static_cast<uint32_t>(127 - 14 - shift) << 23) |
           (((fraction << shift) & 0x3FF) << 13);
  }
  return std::bit_cast<float>(sign | wide);
}

inline uint16_t NarrowFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  uint32_t narrow;
  if (magnitude > 0x7F800000) {  // NaN: upper payload bits, quiet
    narrow = 0x7E00 | ((magnitude >> 13) & 0x3FF);
  } else if (magnitude >= 0x47800000) {  // >= 2^16
    narrow = 0x7C00;
  } else if (magnitude >= 0x38800000) {  // >= 2^-14: normal; carries into inf
    const uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
    narrow = (rounded - (static_cast<uint32_t>(127 - 15) << 23)) >> 13;
  } else if (magnitude < 0x33000000) {  // < 2^-25: zero
    narrow = 0;
  } else {  // subnormal, in units of 2^-24
    const uint32_t shift = 126 - (magnitude >> 23);  // 14 to 24
    const uint32_t fraction = (magnitude & 0x7FFFFF) | 0x800000;
    const uint32_t half = 1u << (shift - 1);
    const uint32_t odd = (fraction >> shift) & 1;
    narrow = (fraction + half - 1 + odd) >> shift;
  }
  return static_cast<uint16_t>(sign | narrow);
}

}  // namespace terrace::internal
