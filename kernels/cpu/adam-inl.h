// The optimizer's update in vectors, for every combination of types: the part
// of the vector kernels that is Adam. Compiled once for each instruction set,
// as part of vector_kernels.cc.
#if defined(TERRACE_KERNELS_CPU_ADAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_KERNELS_CPU_ADAM_INL_H_
#undef TERRACE_KERNELS_CPU_ADAM_INL_H_
#else
#define TERRACE_KERNELS_CPU_ADAM_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/stored_types-inl.h"
#include "kernels/optimizer_kernels.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace terrace::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The constants of a step in registers.
struct AdamVectors {
  HWY_INLINE AdamVectors(const AdamScalars& s, float gradient_multiplier)
      : multiplier(hn::Set(F32(), gradient_multiplier)),
        beta1(hn::Set(F32(), s.beta1)),
        one_minus_beta1(hn::Set(F32(), s.one_minus_beta1)),
        beta2(hn::Set(F32(), s.beta2)),
        one_minus_beta2(hn::Set(F32(), s.one_minus_beta2)),
        epsilon(hn::Set(F32(), s.epsilon)),
        l2_decay(hn::Set(F32(), s.l2_decay)),
        decoupled_decay(hn::Set(F32(), s.decoupled_decay)),
        step_size(hn::Set(F32(), s.step_size)),
        denominator_scale(hn::Set(F32(), s.denominator_scale)) {}

  V multiplier, beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon,
      l2_decay, decoupled_decay, step_size, denominator_scale;
};

enum class Decay { kNone, kL2, kDecoupled };

struct Element {
  V p, m, v;
};

template <Decay kDecay>
HWY_INLINE Element Step(const AdamVectors& c, Element e, V g) {
  g = hn::Mul(g, c.multiplier);
  if (kDecay == Decay::kL2) g = hn::MulAdd(e.p, c.l2_decay, g);
  e.m = hn::MulAdd(g, c.one_minus_beta1, hn::Mul(e.m, c.beta1));
  e.v = hn::MulAdd(hn::Mul(g, g), c.one_minus_beta2, hn::Mul(e.v, c.beta2));
  if (kDecay == Decay::kDecoupled) {
    e.p = hn::MulAdd(e.p, c.decoupled_decay, e.p);
  }
  const V denominator =
      hn::MulAdd(hn::Sqrt(e.v), c.denominator_scale, c.epsilon);
  e.p = hn::MulAdd(hn::Div(e.m, denominator), c.step_size, e.p);
  return e;
}

AdamSpan Rest(const AdamSpan& span, int64_t from) {
  AdamSpan rest = span;
  rest.parameter = static_cast<char*>(span.parameter) +
                   from * DTypeBytes(span.parameter_dtype);
  rest.gradient = static_cast<const char*>(span.gradient) +
                  from * DTypeBytes(span.gradient_dtype);
  if (span.master != nullptr) rest.master += from;
  rest.m += from;
  rest.v += from;
  rest.count -= from;
  return rest;
}

// Makes masters anew from what was written into the parameter since it was
// their rounding. Of whole vectors, at most kGroup elements.
template <typename Parameter>
HWY_INLINE void TakeWritten(const uint16_t* parameter, int64_t count,
                            float* master) {
  const F32 d;
  if (count == kGroup && !Parameter::MayBeWritten(master, parameter)) return;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < count; i += lanes) {
    const V taken = Parameter::Master(hn::LoadU(d, master + i), parameter + i);
    hn::StoreU(taken, d, master + i);
  }
}

template <Decay kDecay, bool kMaster, typename Parameter, typename Gradient>
bool Adam(const AdamScalars& s, float gradient_multiplier,
          const AdamSpan& span) {
  const F32 d;
  const AdamVectors c(s, gradient_multiplier);
  auto* const parameter =
      static_cast<typename Parameter::Stored*>(span.parameter);
  const auto* const gradient =
      static_cast<const typename Gradient::Stored*>(span.gradient);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  // Copies: after a store the span itself would be read again.
  float* const master = span.master;
  float* const first = span.m;
  float* const second = span.v;
  const V zero = hn::Zero(d);
  // x * 0 is 0 unless x is infinite or NaN. An m that is makes p so, also where
  // the step size is 0. Two chains from vector to vector, so that neither waits
  // for the other.
  V nan_if_bad = zero;
  V nan_if_bad_v = zero;
  // What becomes of p; all but the parameter is stored.
  const auto step = [&](int64_t i, V p, V g) HWY_ATTR {
    Element e = {kMaster ? hn::LoadU(d, master + i) : p,
                 hn::LoadU(d, first + i), hn::LoadU(d, second + i)};
    e = Step<kDecay>(c, e, g);
    hn::StoreU(e.m, d, first + i);
    hn::StoreU(e.v, d, second + i);
    if (kMaster) hn::StoreU(e.p, d, master + i);
    nan_if_bad_v = hn::MulAdd(e.v, zero, nan_if_bad_v);
    return e.p;
  };
  const auto update = [&](int64_t i) HWY_ATTR {
    const V p = kMaster ? zero : Parameter::Load(parameter + i);
    const V stored = Parameter::Store(step(i, p, Gradient::Load(gradient + i)),
                                      parameter + i);
    nan_if_bad = hn::MulAdd(stored, zero, nan_if_bad);
  };
  const auto update_two = [&](int64_t i) HWY_ATTR {
    const Two g = Gradient::LoadTwo(gradient + i);
    const Two p = kMaster ? Two{zero, zero} : Parameter::LoadTwo(parameter + i);
    const V first_p = step(i, p.first, g.first);
    const V second_p = step(i + lanes, p.second, g.second);
    const Two stored = Parameter::StoreTwo({first_p, second_p}, parameter + i);
    nan_if_bad = hn::MulAdd(stored.first, zero, nan_if_bad);
    nan_if_bad = hn::MulAdd(stored.second, zero, nan_if_bad);
  };
  const int64_t whole = span.count / lanes * lanes;
  int64_t i = 0;
  while (i < whole) {
    const int64_t end = kMaster ? std::min(i + kGroup, whole) : whole;
    if constexpr (kMaster) {
      TakeWritten<Parameter>(parameter + i, end - i, master + i);
    }
    for (; i + kBlock <= end; i += kBlock) {
      PrefetchAhead(parameter + i);
      PrefetchAhead(gradient + i);
      PrefetchAhead(first + i);
      PrefetchAhead(second + i);
      if (kMaster) PrefetchAhead(master + i);
      for (int64_t j = 0; j < kBlock; j += 2 * lanes) update_two(i + j);
    }
    for (; i < end; i += lanes) update(i);
  }
  const bool finite =
      hn::AllTrue(d, hn::Eq(hn::Add(nan_if_bad, nan_if_bad_v), zero));
  if (i == span.count) return finite;
  return ScalarKernels().adam(s, gradient_multiplier, Rest(span, i)) && finite;
}

template <bool kMaster, typename Parameter, typename Gradient>
bool AdamOfDecay(const AdamScalars& s, float multiplier, const AdamSpan& span) {
  if (s.l2_decay > 0) {
    return Adam<Decay::kL2, kMaster, Parameter, Gradient>(s, multiplier, span);
  }
  if (s.decoupled_decay != 0) {
    return Adam<Decay::kDecoupled, kMaster, Parameter, Gradient>(s, multiplier,
                                                                 span);
  }
  return Adam<Decay::kNone, kMaster, Parameter, Gradient>(s, multiplier, span);
}

template <bool kMaster, typename Parameter>
bool AdamOfGradient(const AdamScalars& s, float multiplier,
                    const AdamSpan& span) {
  switch (span.gradient_dtype) {
    case DType::kFloat32:
      return AdamOfDecay<kMaster, Parameter, Float32>(s, multiplier, span);
    case DType::kBFloat16:
      return AdamOfDecay<kMaster, Parameter, BFloat16>(s, multiplier, span);
    case DType::kFloat16:
      return AdamOfDecay<kMaster, Parameter, Float16>(s, multiplier, span);
  }
  return false;
}

bool AdamAny(const AdamScalars& s, float multiplier, const AdamSpan& span) {
  const bool master = span.master != nullptr;
  switch (span.parameter_dtype) {
    case DType::kFloat32:
      return AdamOfGradient<false, Float32>(s, multiplier, span);
    case DType::kBFloat16:
      return master ? AdamOfGradient<true, BFloat16>(s, multiplier, span)
                    : AdamOfGradient<false, BFloat16>(s, multiplier, span);
    case DType::kFloat16:
      return master ? AdamOfGradient<true, Float16>(s, multiplier, span)
                    : AdamOfGradient<false, Float16>(s, multiplier, span);
  }
  return false;
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace::internal
HWY_AFTER_NAMESPACE();
#endif  // a vector target
#endif  // once for each instruction set
