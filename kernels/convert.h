// Arrays of fp32 to and from bf16 and fp16, with the bits of NarrowReference
// and WidenReference (terrace/adam.h) under every instruction set: rounding to
// nearest even, subnormals kept, overflow to infinity, a bf16 NaN is 0x7FC0.
//
// Thread-safe: touches only its arguments, which must not overlap. Any
// alignment of the element types.
#pragma once

#include <cstdint>

#include "terrace/tensor.h"

namespace terrace {

// `dtype` is kBFloat16 or kFloat16; `count` in elements.
void NarrowFromFloat(DType dtype, const float* source, uint16_t* target,
                     int64_t count);
void WidenToFloat(DType dtype, const uint16_t* source, float* target,
                  int64_t count);

}  // namespace terrace
