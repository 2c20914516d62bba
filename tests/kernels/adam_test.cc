// Bit equality of the fused update with the public scalar step, under every
// instruction set, for every combination of types, split, end and alignment.
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/optimizer_kernels.h"
#include "tests/kernels/instruction_sets.h"

namespace terrace {
namespace {

// Elements of one type at any offset from an aligned address.
class Array {
 public:
  Array(DType dtype, const std::vector<float>& values, int64_t offset = 0)
      : dtype_(dtype),
        offset_(offset),
        size_(values.size()),
        wide_(values.size() + static_cast<size_t>(offset)),
        narrow_(wide_.size()) {
    for (size_t i = 0; i < size_; ++i) Set(i, values[i]);
  }

  DType dtype() const { return dtype_; }
  void* data() {
    if (dtype_ == DType::kFloat32) return wide_.data() + offset_;
    return narrow_.data() + offset_;
  }
  std::vector<float> Values() const {
    std::vector<float> values(size_);
    for (size_t i = 0; i < size_; ++i) {
      const size_t at = i + static_cast<size_t>(offset_);
      values[i] = dtype_ == DType::kFloat32
                      ? wide_[at]
                      : WidenReference(dtype_, narrow_[at]);
    }
    return values;
  }
  void Set(size_t i, float value) {
    const size_t at = i + static_cast<size_t>(offset_);
    if (dtype_ == DType::kFloat32) {
      wide_[at] = value;
    } else {
      narrow_[at] = NarrowReference(dtype_, value);
    }
  }

 private:
  DType dtype_;
  int64_t offset_;
  size_t size_;
  std::vector<float> wide_;
  std::vector<uint16_t> narrow_;
};

struct Types {
  DType parameter;
  bool master;
  DType gradient;
};

std::vector<Types> AllTypes() {
  std::vector<Types> all;
  for (const DType gradient :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    all.push_back({DType::kFloat32, false, gradient});
    for (const DType parameter : {DType::kBFloat16, DType::kFloat16}) {
      all.push_back({parameter, true, gradient});
      all.push_back({parameter, false, gradient});
    }
  }
  return all;
}

// Parameters, state and gradients of one optimizer.
struct Job {
  Job(const Types& of, size_t size, uint64_t seed, int64_t offset)
      : types(of),
        count(static_cast<int64_t>(size)),
        parameter(of.parameter, Random(size, seed), offset),
        gradient(of.gradient, Random(size, seed + 1), offset + 1),
        master(DType::kFloat32, Random(size, seed), offset),
        m(DType::kFloat32, std::vector<float>(size), offset + 2),
        v(DType::kFloat32, std::vector<float>(size), offset + 3) {}

  static std::vector<float> Random(size_t size, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(size);
    for (float& value : values) value = normal(random);
    return values;
  }

  AdamSpan Span(int64_t from, int64_t size) {
    const auto at = [from](Array& array) {
      return static_cast<char*>(array.data()) +
             from * DTypeBytes(array.dtype());
    };
    const auto floats = [&](Array& array) {
      return reinterpret_cast<float*>(at(array));
    };
    return {.parameter = at(parameter),
            .parameter_dtype = types.parameter,
            .gradient = at(gradient),
            .gradient_dtype = types.gradient,
            .master = types.master ? floats(master) : nullptr,
            .m = floats(m),
            .v = floats(v),
            .count = size};
  }

  Types types;
  int64_t count;
  Array parameter, gradient, master, m, v;
};

// The same step by the public reference alone.
void StepByReference(const AdamOptions& options, int64_t step, float multiplier,
                     Job& job) {
  std::vector<float> p =
      job.types.master ? job.master.Values() : job.parameter.Values();
  std::vector<float> m = job.m.Values();
  std::vector<float> v = job.v.Values();
  if (job.types.gradient == DType::kFloat32) {
    AdamStepReference(options, step, multiplier, absl::MakeSpan(p),
                      absl::MakeSpan(m), absl::MakeSpan(v),
                      job.gradient.Values());
  } else {
    const auto* const bits = static_cast<uint16_t*>(job.gradient.data());
    AdamStepReference(options, step, multiplier, absl::MakeSpan(p),
                      absl::MakeSpan(m), absl::MakeSpan(v), job.types.gradient,
                      absl::MakeSpan(bits, p.size()));
  }
  for (size_t i = 0; i < p.size(); ++i) {
    job.m.Set(i, m[i]);
    job.v.Set(i, v[i]);
    if (job.types.master) job.master.Set(i, p[i]);
    job.parameter.Set(i, p[i]);
  }
}

// Bits, but one NaN is as good as another.
testing::AssertionResult SameBits(const Array& actual, const Array& expected) {
  const std::vector<float> a = actual.Values();
  const std::vector<float> e = expected.Values();
  for (size_t i = 0; i < e.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(e[i])) continue;
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(e[i])) {
      return testing::AssertionFailure()
             << "element " << i << " of " << e.size() << ": " << a[i]
             << ", not " << e[i];
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult SameState(const Job& actual, const Job& expected) {
  for (const auto& [name, a, e] :
       {std::tuple("parameter", &actual.parameter, &expected.parameter),
        std::tuple("master", &actual.master, &expected.master),
        std::tuple("m", &actual.m, &expected.m),
        std::tuple("v", &actual.v, &expected.v)}) {
    if (auto same = SameBits(*a, *e); !same) {
      return same << " in " << name << " (" << DTypeName(actual.types.parameter)
                  << (actual.types.master ? " with master" : "")
                  << ", gradient " << DTypeName(actual.types.gradient) << ")";
    }
  }
  return testing::AssertionSuccess();
}

const std::vector<AdamOptions>& Modes() {
  static const std::vector<AdamOptions> modes = {
      {},
      {.decoupled_decay = false},
      {.weight_decay = 0},
      {.learning_rate = 0.3, .epsilon = 0, .bias_correction = false},
  };
  return modes;
}

TEST(AdamTest, EverySizeEqualsTheReferenceBitForBit) {
  std::vector<size_t> counts = {127, 509, 4093};
  for (size_t count = 0; count <= 100; ++count) counts.push_back(count);
  for (const Types& types : AllTypes()) {
    for (const size_t count : counts) {
      const auto offset = static_cast<int64_t>(count % 5);
      const AdamOptions& options = Modes()[count % Modes().size()];
      Job expected(types, count, 17, offset);
      for (int64_t step = 1; step <= 3; ++step) {
        StepByReference(options, step, 0.37f, expected);
      }
      WithEveryInstructionSet([&] {
        Job job(types, count, 17, offset);
        for (int64_t step = 1; step <= 3; ++step) {
          ASSERT_TRUE(AdamUpdate(MakeAdamScalars(options, step), 0.37f,
                                 job.Span(0, job.count)));
        }
        ASSERT_TRUE(SameState(job, expected));
      });
    }
  }
}

TEST(AdamTest, EveryModeAndSplitEqualsTheReferenceBitForBit) {
  constexpr size_t kCount = 1009;
  std::mt19937_64 random(23);
  for (const Types& types : AllTypes()) {
    for (const AdamOptions& options : Modes()) {
      Job expected(types, kCount, 29, 1);
      for (int64_t step = 1; step <= 4; ++step) {
        StepByReference(options, step, 1.0f, expected);
      }
      WithEveryInstructionSet([&] {
        Job job(types, kCount, 29, 1);
        for (int64_t step = 1; step <= 4; ++step) {
          const AdamScalars scalars = MakeAdamScalars(options, step);
          for (int64_t from = 0; from < job.count;) {
            const int64_t size = std::min<int64_t>(
                job.count - from, static_cast<int64_t>(random() % 90));
            ASSERT_TRUE(AdamUpdate(scalars, 1.0f, job.Span(from, size)));
            from += size;
          }
        }
        ASSERT_TRUE(SameState(job, expected));
      });
    }
  }
}

// Zeros of both signs, subnormals, and values whose squares under- and
// overflow: the same bits, and the same verdict, as the reference's.
TEST(AdamTest, ExtremeValuesEqualTheReference) {
  const float extremes[] = {0.0f,   -0.0f,   1e-45f,   -1e-40f, 1.2e-38f,
                            1e-23f, -3e-20f, 1e19f,    -2e19f,  3e38f,
                            1.0f,   -65504,  65519.0f, 6e-8f,   2e-8f};
  std::mt19937_64 random(31);
  std::vector<float> values(600);
  for (const Types& types : AllTypes()) {
    for (const AdamOptions& options : Modes()) {
      Job start(types, values.size(), 37, 0);
      for (size_t i = 0; i < values.size(); ++i) {
        const auto pick = [&] { return extremes[random() % 15]; };
        const float p = pick();
        start.parameter.Set(i, p);
        start.master.Set(i, p);
        start.gradient.Set(i, pick());
        start.m.Set(i, pick());
        start.v.Set(i, std::abs(pick()));
      }
      Job expected = start;
      StepByReference(options, 5, 1.5f, expected);
      bool finite = true;
      for (const Array* array :
           {&expected.parameter, &expected.m, &expected.v}) {
        for (const float value : array->Values()) {
          finite = finite && std::isfinite(value);
        }
      }
      WithEveryInstructionSet([&] {
        Job job = start;
        EXPECT_EQ(AdamUpdate(MakeAdamScalars(options, 5), 1.5f,
                             job.Span(0, job.count)),
                  finite);
        ASSERT_TRUE(SameState(job, expected));
      });
    }
  }
}

TEST(AdamTest, WhatIsNotFiniteIsSeenWhereverItStands) {
  constexpr size_t kCount = 37;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Types& types : AllTypes()) {
    WithEveryInstructionSet([&] {
      const AdamScalars scalars = MakeAdamScalars({}, 1);
      for (size_t i = 0; i < kCount; ++i) {
        for (const float bad : {infinity, -infinity, std::nanf("")}) {
          Job job(types, kCount, 41, 0);
          if (i % 2 == 0) {
            job.gradient.Set(i, bad);
          } else {
            job.parameter.Set(i, bad);
            job.master.Set(i, bad);
          }
          ASSERT_FALSE(AdamUpdate(scalars, 1.0f, job.Span(0, job.count))) << i;
        }
        Job job(types, kCount, 41, 0);
        ASSERT_TRUE(AdamUpdate(scalars, 1.0f, job.Span(0, job.count)));
      }
    });
  }
}

// v overflows while p stays finite: m / infinity is zero.
TEST(AdamTest, AnOverflowOfTheSecondMomentIsSeen) {
  for (const size_t at : {3u, 20u, 36u}) {
    WithEveryInstructionSet([&] {
      Job job({DType::kFloat32, false, DType::kFloat32}, 37, 43, 0);
      job.gradient.Set(at, 1e30f);
      EXPECT_FALSE(
          AdamUpdate(MakeAdamScalars({}, 1), 1.0f, job.Span(0, job.count)));
      EXPECT_TRUE(std::isinf(job.v.Values()[at]));
      EXPECT_TRUE(std::isfinite(job.parameter.Values()[at]));
    });
  }
}

// Whatever the step size is and the second moment beside it.
TEST(AdamTest, AFirstMomentThatIsNotFiniteIsSeen) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Types& types : AllTypes()) {
    for (const double rate : {0.0, 1e-3}) {
      for (const double epsilon : {0.0, 1e-8}) {
        const AdamScalars scalars =
            MakeAdamScalars({.learning_rate = rate, .epsilon = epsilon}, 1);
        WithEveryInstructionSet([&] {
          for (const float m : {infinity, -infinity, std::nanf("")}) {
            for (const float v : {0.0f, 1.0f, 3.4e38f, infinity}) {
              Job job(types, 37, 45, 0);
              job.m.Set(20, m);
              job.v.Set(20, v);
              EXPECT_FALSE(AdamUpdate(scalars, 1.0f, job.Span(0, job.count)));
            }
          }
        });
      }
    }
  }
}

// The master is finite, what is handed to the model is not.
TEST(AdamTest, AnOverflowOfTheCastIsSeen) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const size_t at : {3u, 20u, 36u}) {
      WithEveryInstructionSet([&] {
        Job job({dtype, true, DType::kFloat32}, 37, 47, 0);
        const float large = dtype == DType::kFloat16 ? 65530.0f : 3.4028e38f;
        job.master.Set(at, large);
        job.parameter.Set(at, large);
        EXPECT_FALSE(AdamUpdate(MakeAdamScalars({.weight_decay = 0}, 1), 1.0f,
                                job.Span(0, job.count)));
        EXPECT_TRUE(std::isfinite(job.master.Values()[at]));
        EXPECT_TRUE(std::isinf(job.parameter.Values()[at]));
      });
    }
  }
}

TEST(AdamTest, NothingOutsideTheSpanIsTouched) {
  for (const Types& types : AllTypes()) {
    WithEveryInstructionSet([&] {
      const Job before(types, 100, 53, 0);
      Job expected = before;
      StepByReference({}, 1, 1.0f, expected);
      Job job = before;
      ASSERT_TRUE(AdamUpdate(MakeAdamScalars({}, 1), 1.0f, job.Span(33, 35)));
      for (const auto& [name, actual, old, updated] :
           {std::tuple("p", &job.parameter, &before.parameter,
                       &expected.parameter),
            std::tuple("m", &job.m, &before.m, &expected.m),
            std::tuple("v", &job.v, &before.v, &expected.v)}) {
        for (size_t i = 0; i < 100; ++i) {
          const Array& source = i >= 33 && i < 68 ? *updated : *old;
          ASSERT_EQ(actual->Values()[i], source.Values()[i]) << name << i;
        }
      }
      ASSERT_TRUE(SameBits(job.gradient, before.gradient));
    });
  }
}

}  // namespace
}  // namespace terrace
