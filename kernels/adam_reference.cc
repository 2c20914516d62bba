// The definitions of terrace/adam.h, as plain as can be. Compiled without
// contraction: only what says std::fma is fused.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/float16.h"
#include "kernels/optimizer_kernels.h"
#include "terrace/adam.h"

namespace terrace {
namespace {

struct Element {
  float p, m, v;
};

Element Step(const AdamScalars& s, Element e, float g) {
  if (s.l2_decay > 0) g = std::fma(e.p, s.l2_decay, g);
  e.m = std::fma(g, s.one_minus_beta1, e.m * s.beta1);
  e.v = std::fma(g * g, s.one_minus_beta2, e.v * s.beta2);
  if (s.decoupled_decay != 0) e.p = std::fma(e.p, s.decoupled_decay, e.p);
  const float denominator =
      std::fma(std::sqrt(e.v), s.denominator_scale, s.epsilon);
  e.p = std::fma(e.m / denominator, s.step_size, e.p);
  return e;
}

template <typename Gradient>  // float Gradient(size_t i)
void StepAll(const AdamOptions& options, int64_t step, float multiplier,
             absl::Span<float> p, absl::Span<float> m, absl::Span<float> v,
             Gradient gradient) {
  TERRACE_CHECK(m.size() == p.size() && v.size() == p.size());
  const AdamScalars scalars = MakeAdamScalars(options, step);
  multiplier *= scalars.gradient_sign;
  for (size_t i = 0; i < p.size(); ++i) {
    const Element e =
        Step(scalars, {p[i], m[i], v[i]}, gradient(i) * multiplier);
    p[i] = e.p;
    m[i] = e.m;
    v[i] = e.v;
  }
}

template <typename Value>  // float Value(size_t i)
double SquaredNorm(size_t size, double sum, Value value) {
  for (size_t begin = 0; begin < size; begin += kNormBlock) {
    const size_t end = std::min<size_t>(size, begin + kNormBlock);
    std::array<double, 16> lanes{};
    for (size_t i = begin; i < end; ++i) {
      const double x = value(i);
      lanes[(i - begin) % 16] += x * x;  // the product is exact
    }
    for (size_t width = 8; width > 0; width /= 2) {
      for (size_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
    }
    sum += lanes[0];
  }
  return sum;
}

}  // namespace

AdamScalars MakeAdamScalars(const AdamOptions& options, int64_t step) {
  TERRACE_CHECK(step >= 1);
  const auto t = static_cast<double>(step);
  const double lr = options.learning_rate;
  const double wd = options.weight_decay;
  const bool corrected = options.bias_correction;
  // In double from the options themselves: 1 - b of a b that was rounded to
  // fp32 would be off by 1e-5 of itself at b = 0.999.
  const double k1 = corrected ? 1 - std::pow(options.beta1, t) : 1;
  const double k2 =
      corrected ? 1 / std::sqrt(1 - std::pow(options.beta2, t)) : 1;
  const bool decoupled = options.decoupled_decay && wd > 0;
  return AdamScalars{
      .beta1 = static_cast<float>(options.beta1),
      .one_minus_beta1 = static_cast<float>(1 - options.beta1),
      .beta2 = static_cast<float>(options.beta2),
      .one_minus_beta2 = static_cast<float>(1 - options.beta2),
      .epsilon = static_cast<float>(options.epsilon),
      .l2_decay =
          options.decoupled_decay || !(wd > 0) ? 0.0f : static_cast<float>(wd),
      .decoupled_decay = decoupled ? static_cast<float>(-lr * wd) : 0.0f,
      .step_size = static_cast<float>(-lr / k1),
      .denominator_scale = static_cast<float>(k2),
      .gradient_sign = options.maximize ? -1.0f : 1.0f,
  };
}

void AdamStepReference(const AdamOptions& options, int64_t step,
                       float gradient_multiplier, absl::Span<float> p,
                       absl::Span<float> m, absl::Span<float> v,
                       absl::Span<const float> gradient) {
  TERRACE_CHECK(gradient.size() == p.size());
  StepAll(options, step, gradient_multiplier, p, m, v,
          [&](size_t i) { return gradient[i]; });
}

void AdamStepReference(const AdamOptions& options, int64_t step,
                       float gradient_multiplier, absl::Span<float> p,
                       absl::Span<float> m, absl::Span<float> v, DType dtype,
                       absl::Span<const uint16_t> gradient) {
  TERRACE_CHECK(gradient.size() == p.size());
  StepAll(options, step, gradient_multiplier, p, m, v,
          [&](size_t i) { return WidenReference(dtype, gradient[i]); });
}

double SquaredNormReference(absl::Span<const float> values, double initial) {
  return SquaredNorm(values.size(), initial,
                     [&](size_t i) { return values[i]; });
}

double SquaredNormReference(DType dtype, absl::Span<const uint16_t> values,
                            double initial) {
  return SquaredNorm(values.size(), initial, [&](size_t i) {
    return WidenReference(dtype, values[i]);
  });
}

float WidenReference(DType dtype, uint16_t bits) {
  TERRACE_CHECK(dtype != DType::kFloat32);
  return dtype == DType::kBFloat16 ? internal::WidenBFloat16(bits)
                                   : internal::WidenFloat16(bits);
}

uint16_t NarrowReference(DType dtype, float value) {
  TERRACE_CHECK(dtype != DType::kFloat32);
  return dtype == DType::kBFloat16 ? internal::NarrowBFloat16(value)
                                   : internal::NarrowFloat16(value);
}

float MasterReference(DType dtype, float master, uint16_t parameter) {
  return NarrowReference(dtype, master) == parameter
             ? master
             : WidenReference(dtype, parameter);
}

}  // namespace terrace
