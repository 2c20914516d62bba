// A 16-bit parameter that the program has written: where it has other bits than
// its master's rounding the step starts from the parameter, element by element,
// under every instruction set; elsewhere from the master, bit for bit.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/optimizer_kernels.h"
#include "terrace/adam.h"
#include "tests/kernels/instruction_sets.h"

namespace terrace {
namespace {

constexpr DType kNarrow[] = {DType::kBFloat16, DType::kFloat16};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A parameter, its master and moments, and an fp32 gradient.
struct Weights {
  explicit Weights(DType of, size_t size = 0)
      : dtype(of), parameter(size), master(size), m(size), v(size), g(size) {}

  static Weights Drawn(DType dtype, size_t size, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    Weights drawn(dtype, size);
    for (size_t i = 0; i < size; ++i) {
      drawn.master[i] = normal(random);
      drawn.parameter[i] = NarrowReference(dtype, drawn.master[i]);
      drawn.m[i] = 0.1f * normal(random);
      drawn.v[i] = 0.1f * std::abs(normal(random));
      drawn.g[i] = normal(random);
    }
    return drawn;
  }

  // At rest: a step leaves p as it is where there is no decay.
  void Add(uint16_t bits, float of_master) {
    parameter.push_back(bits);
    master.push_back(of_master);
    for (std::vector<float>* zeros : {&m, &v, &g}) zeros->push_back(0);
  }
  // Apart from its master.
  void Write(size_t i, float value) {
    parameter[i] = NarrowReference(dtype, value);
  }

  size_t size() const { return parameter.size(); }
  bool Step(const AdamOptions& options, int64_t step) {
    return AdamUpdate(MakeAdamScalars(options, step), 1.0f,
                      {.parameter = parameter.data(),
                       .parameter_dtype = dtype,
                       .gradient = g.data(),
                       .master = master.data(),
                       .m = m.data(),
                       .v = v.data(),
                       .count = static_cast<int64_t>(size())});
  }
  // The same by the public reference; a master is first brought to what was
  // written by comparing bits in plain sight.
  void StepByReference(const AdamOptions& options, int64_t step) {
    for (size_t i = 0; i < size(); ++i) {
      if (NarrowReference(dtype, master[i]) == parameter[i]) continue;
      master[i] = WidenReference(dtype, parameter[i]);
    }
    AdamStepReference(options, step, 1.0f, absl::MakeSpan(master),
                      absl::MakeSpan(m), absl::MakeSpan(v), g);
    for (size_t i = 0; i < size(); ++i) {
      parameter[i] = NarrowReference(dtype, master[i]);
    }
  }

  DType dtype;
  std::vector<uint16_t> parameter;
  std::vector<float> master, m, v, g;
};

// Bits, but one NaN is as good as another.
bool Same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

testing::AssertionResult SameBits(const Weights& a, const Weights& e) {
  for (size_t i = 0; i < e.size(); ++i) {
    const float parameter = WidenReference(a.dtype, a.parameter[i]);
    if (Same(a.master[i], e.master[i]) && Same(a.m[i], e.m[i]) &&
        Same(a.v[i], e.v[i]) &&
        Same(parameter, WidenReference(e.dtype, e.parameter[i]))) {
      continue;
    }
    return testing::AssertionFailure()
           << DTypeName(a.dtype) << ", element " << i << " of " << e.size()
           << ": master " << a.master[i] << ", not " << e.master[i]
           << "; parameter bits " << a.parameter[i] << ", not "
           << e.parameter[i];
  }
  return testing::AssertionSuccess();
}

TEST(Written, ElementsGoOnFromWhatWasWrittenTheOthersFromTheirMasters) {
  const AdamOptions modes[] = {
      {}, {.decoupled_decay = false}, {.weight_decay = 0}};
  std::vector<size_t> counts = {127, 1009};
  for (size_t count = 1; count <= 70; ++count) counts.push_back(count);
  for (const DType dtype : kNarrow) {
    for (const size_t count : counts) {
      const AdamOptions& options = modes[count % 3];
      std::mt19937_64 random(count);
      const Weights start = Weights::Drawn(dtype, count, count);
      WithEveryInstructionSet([&] {
        Weights weights = start;
        Weights expected = start;
        for (int64_t step = 1; step <= 3; ++step) {
          for (size_t i = 0; i < count; ++i) {
            if (random() % 3 != 0) continue;
            const float value = static_cast<float>(random() % 1000) * 0.01f;
            weights.Write(i, value);
            expected.Write(i, value);
          }
          expected.StepByReference(options, step);
          ASSERT_TRUE(weights.Step(options, step));
          ASSERT_TRUE(SameBits(weights, expected)) << "step " << step;
        }
      });
    }
  }
}

// From what was written, as if the run had begun there with these moments.
TEST(Written, AStepFromAWrittenValueIsTheStepOfAnFp32ParameterOfThatValue) {
  for (const DType dtype : kNarrow) {
    Weights start = Weights::Drawn(dtype, 333, 5);
    for (size_t i = 0; i < start.size(); ++i) {
      start.master[i] += 10;  // far from it
      start.Write(i, 0.375f);
    }
    std::vector<float> p(start.size(), 0.375f);
    std::vector<float> m = start.m, v = start.v;
    AdamStepReference({}, 7, 1.0f, absl::MakeSpan(p), absl::MakeSpan(m),
                      absl::MakeSpan(v), start.g);
    WithEveryInstructionSet([&] {
      Weights weights = start;
      ASSERT_TRUE(weights.Step({}, 7));
      EXPECT_EQ(weights.master, p);
      EXPECT_EQ(weights.m, m);
      EXPECT_EQ(weights.v, v);
    });
  }
}

TEST(Written, WhatWasNotWrittenHasTheBitsOfARunOfItsMasters) {
  for (const DType dtype : kNarrow) {
    const Weights start = Weights::Drawn(dtype, 4099, 11);
    std::vector<float> p = start.master, m = start.m, v = start.v;
    for (int64_t step = 1; step <= 20; ++step) {
      AdamStepReference({.learning_rate = 0.01}, step, 1.0f, absl::MakeSpan(p),
                        absl::MakeSpan(m), absl::MakeSpan(v), start.g);
    }
    WithEveryInstructionSet([&] {
      Weights weights = start;
      for (int64_t step = 1; step <= 20; ++step) {
        ASSERT_TRUE(weights.Step({.learning_rate = 0.01}, step));
      }
      EXPECT_EQ(weights.master, p);
      for (size_t i = 0; i < p.size(); ++i) {
        ASSERT_EQ(weights.parameter[i], NarrowReference(dtype, p[i])) << i;
      }
    });
  }
}

// Every value of 16 bits, with masters at and beside the ends of what rounds to
// it, and every value's opposite.
TEST(Written, ExactlyWhatRoundsToTheParameterIsKept) {
  for (const DType dtype : kNarrow) {
    // Bits of fp32 between two neighbours, where 16 bits are normal.
    const uint32_t ulp = dtype == DType::kBFloat16 ? 0x10000 : 0x2000;
    Weights start(dtype);
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto narrow = static_cast<uint16_t>(bits);
      const auto wide = std::bit_cast<uint32_t>(WidenReference(dtype, narrow));
      for (const uint32_t centre : {wide - ulp / 2, wide, wide + ulp / 2}) {
        for (const uint32_t near : {centre - 1, centre, centre + 1}) {
          start.Add(narrow, std::bit_cast<float>(near));
        }
      }
      start.Add(narrow, std::bit_cast<float>(wide ^ 0x80000000));
    }
    Weights expected = start;
    expected.StepByReference({.weight_decay = 0}, 1);
    WithEveryInstructionSet([&] {
      Weights weights = start;
      weights.Step({.weight_decay = 0}, 1);
      ASSERT_TRUE(SameBits(weights, expected));
    });
  }
}

// Of subnormals the steps are wider: values that fp16 rounds to its own, to
// zeros of either sign or to infinity, and some it does not.
TEST(Written, SmallAndLargeMastersAreComparedAsTheyAreRounded) {
  const float masters[] = {
      0.0f,     -0.0f,    1e-45f,  -1e-40f,  2e-8f,    -2e-8f,    2.9e-8f,
      2.99e-8f, 3e-8f,    5.9e-8f, 6.1e-5f,  -6.2e-5f, 65504.0f,  65519.0f,
      65520.0f, 65530.0f, -7e4f,   3.38e38f, 3.4e38f,  kInfinity, -kInfinity};
  for (const DType dtype : kNarrow) {
    Weights start(dtype);
    for (const float master : masters) {
      for (const float other : masters) {
        start.Add(NarrowReference(dtype, other), master);
      }
    }
    Weights expected = start;
    expected.StepByReference({.weight_decay = 0}, 1);
    WithEveryInstructionSet([&] {
      Weights weights = start;
      weights.Step({.weight_decay = 0}, 1);
      ASSERT_TRUE(SameBits(weights, expected));
    });
  }
}

// Of whatever payload, and beside every parameter: what is written over a NaN
// counts, and a NaN that is written does.
TEST(Written, ANaNIsReplacedAndReplaces) {
  const uint32_t nans[] = {0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001,
                           0x7FFFFFFF, 0xFFFFFFFF, 0x7FFF8000, 0xFFFF7FFF,
                           0x7F808000, 0x7FA00000, 0x7FC02000, 0x7F801FFF};
  for (const DType dtype : kNarrow) {
    Weights start(dtype);
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      for (const uint32_t nan : nans) {
        start.Add(static_cast<uint16_t>(bits), std::bit_cast<float>(nan));
      }
      if (std::isnan(WidenReference(dtype, static_cast<uint16_t>(bits)))) {
        start.Add(static_cast<uint16_t>(bits), 0.5f);
      }
    }
    Weights expected = start;
    expected.StepByReference({.weight_decay = 0}, 1);
    WithEveryInstructionSet([&] {
      Weights weights = start;
      weights.Step({.weight_decay = 0}, 1);
      ASSERT_TRUE(SameBits(weights, expected));
    });
  }
}

TEST(Written, TheVerdictIsThatOfWhatTheStepBeganWith) {
  for (const DType dtype : kNarrow) {
    for (const size_t at : {3u, 20u, 36u}) {
      WithEveryInstructionSet([&] {
        Weights mended = Weights::Drawn(dtype, 37, 13);
        mended.master[at] = std::nanf("");
        mended.Write(at, 1.0f);
        EXPECT_TRUE(mended.Step({}, 1));
        for (const float bad : {std::nanf(""), kInfinity, -kInfinity}) {
          Weights broken = Weights::Drawn(dtype, 37, 13);
          broken.Write(at, bad);
          EXPECT_FALSE(broken.Step({}, 1));
        }
      });
    }
  }
}

TEST(Written, TheReferenceSaysWhichOfTheTwoCounts) {
  const auto bf16 = [](float master, uint16_t parameter) {
    return MasterReference(DType::kBFloat16, master, parameter);
  };
  EXPECT_EQ(bf16(1.001f, 0x3F80), 1.001f);  // rounds to 1
  EXPECT_EQ(bf16(1.01f, 0x3F80), 1.0f);     // to 1.0078125
  EXPECT_EQ(bf16(1.001f, 0x4000), 2.0f);
  EXPECT_EQ(bf16(3.4e38f, 0x7F80), 3.4e38f);  // to infinity
  EXPECT_TRUE(std::signbit(bf16(0.0f, 0x8000)));
  EXPECT_TRUE(std::isnan(bf16(1.0f, 0x7FC1)));
  EXPECT_TRUE(std::isnan(bf16(std::nanf(""), 0x7FC0)));
  EXPECT_EQ(bf16(std::nanf(""), 0x3F80), 1.0f);
  const auto fp16 = [](float master, uint16_t parameter) {
    return MasterReference(DType::kFloat16, master, parameter);
  };
  EXPECT_EQ(fp16(65530.0f, 0x7C00), 65530.0f);
  EXPECT_EQ(fp16(2e-8f, 0x0000), 2e-8f);
  EXPECT_EQ(fp16(4e-8f, 0x0000), 0.0f);
}

}  // namespace
}  // namespace terrace
