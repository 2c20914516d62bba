// The public kernels: they check what a caller can only get wrong in code and
// call the chosen instruction set.
#include "kernels/optimizer_kernels.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/convert.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/norm.h"
#include "kernels/stream.h"

namespace terrace {

bool AdamUpdate(const AdamScalars& scalars, float gradient_multiplier,
                const AdamSpan& span) {
  TERRACE_CHECK(span.count >= 0);
  if (span.count == 0) return true;
  TERRACE_CHECK(span.parameter != nullptr && span.gradient != nullptr &&
                span.m != nullptr && span.v != nullptr);
  TERRACE_CHECK(span.master == nullptr ||
                span.parameter_dtype != DType::kFloat32);
  return internal::ChosenKernels().adam(
      scalars, gradient_multiplier * scalars.gradient_sign, span);
}

GradientSummary SummarizeGradient(const void* values, DType dtype,
                                  int64_t count) {
  const internal::KernelTable& kernels = internal::ChosenKernels();
  const auto* const bytes = static_cast<const char*>(values);
  double sum = 0;
  for (int64_t begin = 0; begin < count; begin += kNormBlock) {
    sum += kernels.sum_squares(bytes + begin * DTypeBytes(dtype), dtype,
                               std::min(kNormBlock, count - begin));
  }
  return {.squared_norm = sum, .finite = std::isfinite(sum)};
}

void SumSquaresOfBlocks(const void* values, DType dtype, int64_t count,
                        absl::Span<double> block_sums) {
  TERRACE_CHECK(static_cast<int64_t>(block_sums.size()) == NormBlocks(count));
  const internal::KernelTable& kernels = internal::ChosenKernels();
  const auto* at = static_cast<const char*>(values);
  for (double& sum : block_sums) {
    const int64_t block = std::min(kNormBlock, count);
    sum = kernels.sum_squares(at, dtype, block);
    at += block * DTypeBytes(dtype);
    count -= block;
  }
}

void NarrowFromFloat(DType dtype, const float* source, uint16_t* target,
                     int64_t count) {
  TERRACE_CHECK(dtype != DType::kFloat32 && count >= 0);
  internal::ChosenKernels().narrow(dtype, source, target, count);
}

void WidenToFloat(DType dtype, const uint16_t* source, float* target,
                  int64_t count) {
  TERRACE_CHECK(dtype != DType::kFloat32 && count >= 0);
  internal::ChosenKernels().widen(dtype, source, target, count);
}

void StreamLikeAdam(StreamKind kind, float* p, const float* g, float* m,
                    float* v, int64_t count) {
  internal::ChosenKernels().stream_like_adam(kind, p, g, m, v, count);
}

uint32_t StreamRead(StreamKind kind, const uint32_t* values, int64_t count) {
  return internal::ChosenKernels().stream_read(kind, values, count);
}

void StreamTriad(float* a, const float* b, const float* c, float scale,
                 int64_t count) {
  internal::ChosenKernels().triad(a, b, c, scale, count);
}

}  // namespace terrace
