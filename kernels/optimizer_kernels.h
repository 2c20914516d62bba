// The optimizer's update: one fused pass over a range of elements that
// unscales and clips the gradient, updates the moments, decays, updates the
// parameter, casts it to 16 bits and looks for infinities and NaNs.
//
// Each result has the bits of AdamStepReference (terrace/adam.h), with every
// instruction set, for every split of a range, at every alignment: an element's
// result depends on that element only.
//
// The floating-point environment is the thread's and has to be the default one,
// as a pool's threads have it.
//
// Thread-safe: a call touches only the memory of its span; ranges updated at
// the same time must not overlap. Owns nothing, allocates nothing.
#pragma once

#include <cstdint>

#include "terrace/adam.h"
#include "terrace/tensor.h"

namespace terrace {

// What a step's formula needs, precomputed once per step; see terrace/adam.h.
struct AdamScalars {
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float epsilon;
  float l2_decay;           // Adam: wd; used if > 0
  float decoupled_decay;    // AdamW: -lr*wd; used if != 0
  float step_size;          // -lr/k1
  float denominator_scale;  // k2
  float gradient_sign;      // -1 where the objective is maximized
};

// `step` counts from 1.
AdamScalars MakeAdamScalars(const AdamOptions& options, int64_t step);

// A contiguous range of elements. What is updated in fp32 is `master` if there
// is one, else `parameter` itself (of 16 bits: widened, updated, rounded).
// `parameter`, of 16 bits, beside a master is its cast: an element with other
// bits than that was written since and takes the master's place, as
// MasterReference (terrace/adam.h) says. An fp32 parameter has no master. Any
// pointer may have any alignment that its type allows.
struct AdamSpan {
  void* parameter = nullptr;
  DType parameter_dtype = DType::kFloat32;
  const void* gradient = nullptr;
  DType gradient_dtype = DType::kFloat32;
  float* master = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  int64_t count = 0;  // elements
};

// Updates every element, whatever it meets. Returns whether all new values are
// finite: parameters (also after the cast), m and v.
bool AdamUpdate(const AdamScalars& scalars, float gradient_multiplier,
                const AdamSpan& span);

}  // namespace terrace
