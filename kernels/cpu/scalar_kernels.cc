#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/float16.h"
#include "kernels/cpu/kernel_table.h"

namespace terrace::internal {
namespace {

struct Float32 {
  using Stored = float;
  static float Widen(float value) { return value; }
  static float Narrow(float value) { return value; }
};
struct BFloat16 {
  using Stored = uint16_t;
  static float Widen(uint16_t bits) { return WidenBFloat16(bits); }
  static uint16_t Narrow(float value) { return NarrowBFloat16(value); }
};
struct Float16 {
  using Stored = uint16_t;
  static float Widen(uint16_t bits) { return WidenFloat16(bits); }
  static uint16_t Narrow(float value) { return NarrowFloat16(value); }
};

// Calls `f` with the type that stands for `dtype`.
template <typename F>
auto WithType(DType dtype, F f) {
  if (dtype == DType::kFloat32) return f(Float32());
  if (dtype == DType::kBFloat16) return f(BFloat16());
  return f(Float16());
}

template <typename Parameter, typename Gradient>
bool Adam(const AdamScalars& s, float multiplier, const AdamSpan& span) {
  auto* const parameter =
      static_cast<typename Parameter::Stored*>(span.parameter);
  const auto* const gradient =
      static_cast<const typename Gradient::Stored*>(span.gradient);
  bool finite = true;
  for (int64_t i = 0; i < span.count; ++i) {
    float p = Parameter::Widen(parameter[i]);
    // Else the parameter has been written since.
    if (span.master != nullptr &&
        Parameter::Narrow(span.master[i]) == parameter[i]) {
      p = span.master[i];
    }
    float g = Gradient::Widen(gradient[i]) * multiplier;
    if (s.l2_decay > 0) g = std::fma(p, s.l2_decay, g);
    const float m = std::fma(g, s.one_minus_beta1, span.m[i] * s.beta1);
    const float v = std::fma(g * g, s.one_minus_beta2, span.v[i] * s.beta2);
    if (s.decoupled_decay != 0) p = std::fma(p, s.decoupled_decay, p);
    const float denominator =
        std::fma(std::sqrt(v), s.denominator_scale, s.epsilon);
    p = std::fma(m / denominator, s.step_size, p);
    span.m[i] = m;
    span.v[i] = v;
    if (span.master != nullptr) span.master[i] = p;
    parameter[i] = Parameter::Narrow(p);
    finite = finite && std::isfinite(m) && std::isfinite(v) &&
             std::isfinite(Parameter::Widen(parameter[i]));
  }
  return finite;
}

bool AdamAny(const AdamScalars& scalars, float multiplier,
             const AdamSpan& span) {
  return WithType(span.parameter_dtype, [&](auto parameter) {
    return WithType(span.gradient_dtype, [&](auto gradient) {
      return Adam<decltype(parameter), decltype(gradient)>(scalars, multiplier,
                                                           span);
    });
  });
}

double SumSquares(const void* values, DType dtype, int64_t count) {
  return WithType(dtype, [&](auto type) {
    using Type = decltype(type);
    const auto* const stored =
        static_cast<const typename Type::Stored*>(values);
    double lanes[kNormLanes] = {};
    for (int64_t i = 0; i < count; ++i) {
      const double x = Type::Widen(stored[i]);
      lanes[i % kNormLanes] += x * x;
    }
    return SumNormLanes(lanes);
  });
}

void Narrow(DType dtype, const float* source, uint16_t* target, int64_t count) {
  std::transform(source, source + count, target,
                 dtype == DType::kBFloat16 ? NarrowBFloat16 : NarrowFloat16);
}

void Widen(DType dtype, const uint16_t* source, float* target, int64_t count) {
  std::transform(source, source + count, target,
                 dtype == DType::kBFloat16 ? WidenBFloat16 : WidenFloat16);
}

float ExclusiveOr(float a, float b) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(a) ^
                              std::bit_cast<uint32_t>(b));
}

void Stream(StreamKind, float* p, const float* g, float* m, float* v,
            int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    p[i] = ExclusiveOr(p[i], g[i]);
    m[i] = ExclusiveOr(m[i], g[i]);
    v[i] = ExclusiveOr(v[i], g[i]);
  }
}

uint32_t Read(StreamKind, const uint32_t* values, int64_t count) {
  uint32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum ^= values[i];
  return sum;
}

void Triad(float* a, const float* b, const float* c, float scale,
           int64_t count) {
  for (int64_t i = 0; i < count; ++i) a[i] = std::fma(scale, c[i], b[i]);
}

constexpr KernelTable kScalar = {"scalar", AdamAny, SumSquares, Narrow,
                                 Widen,    Stream,  Read,       Triad};

}  // namespace

const KernelTable& ScalarKernels() { return kScalar; }

}  // namespace terrace::internal
