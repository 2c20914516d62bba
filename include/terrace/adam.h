// Adam and AdamW: their options, and the arithmetic that defines every other
// implementation here: a serial scalar loop and a serial norm, in plain C++.
// Whatever else steps an optimizer (vector code, chunks, a pool, a disk) gives
// the bits of these functions.
//
// One step t of one element, all in fp32 with fused multiply-add where written
// (Kingma and Ba, arXiv:1412.6980; Loshchilov and Hutter, arXiv:1711.05101):
//
//   g = gradient * gradient_multiplier
//   Adam:   g = fma(p, wd, g)                 only if wd > 0
//   m = fma(g, 1-b1, m*b1)
//   v = fma(g*g, 1-b2, v*b2)
//   AdamW:  p = fma(p, -lr*wd, p)             only if wd > 0
//   p = fma(m / fma(sqrt(v), k2, epsilon), -lr/k1, p)
//
// k1 = 1 - b1^t and k2 = 1/sqrt(1 - b2^t), both 1 without bias correction. The
// constants b, 1-b, wd, -lr*wd, -lr/k1, k2 and epsilon are computed in double,
// from t and not from the step before, so that a resumed run has the same bits,
// and each is rounded once. The bits of a NaN are not defined, that it is one
// is. An optimizer computes in the default floating-point environment, always.
//
// Thread-safe: pure functions. Spans of one call have equal sizes.
//
//   AdamOptions options{.learning_rate = 3e-4};
//   AdamStepReference(options, /*step=*/1, 1.0f, p, m, v, g);
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "terrace/tensor.h"

namespace terrace {

struct AdamOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 1e-2;
  // true: AdamW, decay apart from the gradient; false: Adam with L2.
  bool decoupled_decay = true;
  bool bias_correction = true;
  bool maximize = false;  // the gradient is taken with the other sign

  friend bool operator==(const AdamOptions&, const AdamOptions&) = default;
};

// Updates p, m and v in place; `step` counts from 1. The gradient is always
// multiplied by gradient_multiplier (clip factor / loss scale), also by 1.
void AdamStepReference(const AdamOptions& options, int64_t step,
                       float gradient_multiplier, absl::Span<float> p,
                       absl::Span<float> m, absl::Span<float> v,
                       absl::Span<const float> gradient);

// The same with a 16-bit gradient of `dtype` (kBFloat16 or kFloat16), given by
// its bits.
void AdamStepReference(const AdamOptions& options, int64_t step,
                       float gradient_multiplier, absl::Span<float> p,
                       absl::Span<float> m, absl::Span<float> v, DType dtype,
                       absl::Span<const uint16_t> gradient);

// Blocks of the norm: sums of squares are taken per block of this many
// elements, counted from the start of the tensor, and added in their order.
inline constexpr int64_t kNormBlock = 4096;

// Sum of squares in double. Within a block, element i is added to lane i mod
// 16; the lanes are added as a tree: j and j+8, then j+4, j+2, j+1. The sum
// starts from `initial` and takes one block after the other, so a gradient of
// several tensors is one chain: norm = SquaredNormReference(b, f(a)).
double SquaredNormReference(absl::Span<const float> values, double initial = 0);
double SquaredNormReference(DType dtype, absl::Span<const uint16_t> values,
                            double initial = 0);

// fp32 from the bits of a 16-bit `dtype`: exact; a NaN becomes quiet.
float WidenReference(DType dtype, uint16_t bits);

// The bits of `value` in a 16-bit `dtype`, rounded to nearest even; too large
// becomes infinite. A NaN becomes 0x7FC0 in bf16, and in fp16 keeps its sign
// and the upper bits of its payload and is made quiet.
uint16_t NarrowReference(DType dtype, float value);

// What the step of a 16-bit parameter with an fp32 master takes as p: the
// master where it rounds to the parameter's bits, else the parameter, which
// has been written since the master was rounded. p is then the new master,
// and the parameter its rounding. Without writes no element is ever replaced.
float MasterReference(DType dtype, float master, uint16_t parameter);

}  // namespace terrace
