// The kernels of one instruction set. The public headers of kernels/ call
// through the chosen table; a call per megabyte costs nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/optimizer_kernels.h"
#include "kernels/stream.h"
#include "terrace/tensor.h"

namespace terrace::internal {

struct KernelTable {
  const char* name;
  bool (*adam)(const AdamScalars& scalars, float gradient_multiplier,
               const AdamSpan& span);
  // Of one block, count <= kNormBlock.
  double (*sum_squares)(const void* values, DType dtype, int64_t count);
  void (*narrow)(DType dtype, const float* source, uint16_t* target,
                 int64_t count);
  void (*widen)(DType dtype, const uint16_t* source, float* target,
                int64_t count);
  void (*stream_like_adam)(StreamKind kind, float* p, const float* g, float* m,
                           float* v, int64_t count);
  uint32_t (*stream_read)(StreamKind kind, const uint32_t* values,
                          int64_t count);
  void (*triad)(float* a, const float* b, const float* c, float scale,
                int64_t count);
};

// Plain C++ with std::fma; also what finishes the last few elements of a range
// after a vector loop.
const KernelTable& ScalarKernels();

// Tables of vector instruction sets with fused multiply-add that this build
// and this processor have, best first.
std::vector<const KernelTable*> VectorKernels();

// The table in use; see kernels/instruction_set.h.
const KernelTable& ChosenKernels();

// Lane structure of a block's sum of squares; see terrace/adam.h.
inline constexpr int kNormLanes = 16;

// lanes[j] += lanes[j + 8], then 4, 2, 1. Overwrites the lanes.
inline double SumNormLanes(double* lanes) {
  for (int width = kNormLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

}  // namespace terrace::internal
