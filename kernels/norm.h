// Sum of squares and finiteness of a gradient in one pass, decided before the
// first parameter changes.
//
// The sum has one defined value, that of SquaredNormReference (terrace/adam.h):
// in double per block of kNormBlock elements, blocks added in order. A range
// that is split among threads at multiples of kNormBlock keeps that value if
// the threads give their block sums and one of them adds these in order.
//
// Thread-safe: reads only its arguments. Any alignment of the element type.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "terrace/adam.h"
#include "terrace/tensor.h"

namespace terrace {

struct GradientSummary {
  double squared_norm = 0;  // infinite or NaN unless `finite`
  bool finite = true;       // no element is infinite or NaN
};

// Of `count` elements. Squares of finite fp32 values do not overflow a double.
GradientSummary SummarizeGradient(const void* values, DType dtype,
                                  int64_t count);

constexpr int64_t NormBlocks(int64_t count) {
  return (count + kNormBlock - 1) / kNormBlock;
}

// The sums of squares of the blocks, block_sums.size() == NormBlocks(count).
// A block with an infinity or a NaN has a sum that is not finite.
void SumSquaresOfBlocks(const void* values, DType dtype, int64_t count,
                        absl::Span<double> block_sums);

}  // namespace terrace
