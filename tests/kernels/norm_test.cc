#include "kernels/norm.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/instruction_sets.h"

namespace terrace {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16,
                             DType::kFloat16};

// A gradient in a type, at an address of any element alignment.
struct Gradient {
  DType dtype;
  std::vector<float> wide;  // what each element stands for
  std::vector<uint16_t> narrow;

  const void* At(int64_t offset) const {
    if (dtype == DType::kFloat32) return wide.data() + offset;
    return narrow.data() + offset;
  }
  double Reference(int64_t offset, int64_t count) const {
    const auto from = static_cast<size_t>(offset);
    const auto size = static_cast<size_t>(count);
    if (dtype == DType::kFloat32) {
      return SquaredNormReference(absl::MakeSpan(wide).subspan(from, size));
    }
    return SquaredNormReference(dtype,
                                absl::MakeSpan(narrow).subspan(from, size));
  }
  void Set(size_t index, float value) {
    wide[index] = value;
    if (dtype != DType::kFloat32) {
      narrow[index] = NarrowReference(dtype, value);
      wide[index] = WidenReference(dtype, narrow[index]);
    }
  }
};

Gradient RandomGradient(DType dtype, size_t count) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  Gradient gradient{dtype, std::vector<float>(count),
                    std::vector<uint16_t>(count)};
  for (size_t i = 0; i < count; ++i) gradient.Set(i, normal(random));
  return gradient;
}

TEST(NormTest, EqualsTheReferenceBitForBitAtEverySizeAndAlignment) {
  std::vector<int64_t> counts = {4095,  4096,          4097,  8191,
                                 12288, 3 * 4096 + 17, 104729};
  for (int64_t count = 0; count <= 100; ++count) counts.push_back(count);
  for (const DType dtype : kDTypes) {
    const Gradient gradient = RandomGradient(dtype, 104729 + 16);
    WithEveryInstructionSet([&] {
      for (const int64_t count : counts) {
        const int64_t offset = count % 13;
        const GradientSummary summary =
            SummarizeGradient(gradient.At(offset), dtype, count);
        ASSERT_TRUE(summary.finite);
        ASSERT_EQ(std::bit_cast<uint64_t>(summary.squared_norm),
                  std::bit_cast<uint64_t>(gradient.Reference(offset, count)))
            << DTypeName(dtype) << " " << count;
      }
    });
  }
}

TEST(NormTest, AgreesWithExtendedPrecision) {
  for (const DType dtype : kDTypes) {
    const Gradient gradient = RandomGradient(dtype, 1 << 20);
    long double exact = 0;
    for (const float x : gradient.wide) {
      exact += static_cast<long double>(x) * static_cast<long double>(x);
    }
    const double sum =
        SummarizeGradient(gradient.At(0), dtype, 1 << 20).squared_norm;
    // Lanes add 256 terms, the tree 4, blocks 256: far below 1e-13.
    EXPECT_NEAR(static_cast<double>(sum / exact - 1), 0, 1e-13);
  }
}

TEST(NormTest, BlockSumsOfPartsAddUpToTheWhole) {
  const int64_t count = 9 * kNormBlock + 1234;
  for (const DType dtype : kDTypes) {
    const Gradient gradient = RandomGradient(dtype, count);
    std::vector<double> sums(static_cast<size_t>(NormBlocks(count)), -1);
    const int64_t cut = 4 * kNormBlock;
    absl::Span<double> span = absl::MakeSpan(sums);
    SumSquaresOfBlocks(gradient.At(0), dtype, cut, span.subspan(0, 4));
    SumSquaresOfBlocks(gradient.At(cut), dtype, count - cut, span.subspan(4));
    double total = 0;
    for (const double sum : sums) total += sum;
    EXPECT_EQ(total,
              SummarizeGradient(gradient.At(0), dtype, count).squared_norm);
    EXPECT_EQ(total, gradient.Reference(0, count));
  }
}

TEST(NormTest, TheReferenceGoesOnFromAnInitialSum) {
  const std::vector<float> first = {3, 4};
  const std::vector<float> second = {12};
  EXPECT_EQ(SquaredNormReference(second, SquaredNormReference(first)), 169);
}

TEST(NormTest, AnInfinityOrNanAnywhereIsSeen) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const DType dtype : kDTypes) {
    Gradient gradient = RandomGradient(dtype, 100);
    WithEveryInstructionSet([&] {
      for (const float bad : {infinity, -infinity, std::nanf("")}) {
        for (size_t i = 0; i < 100; ++i) {
          const float good = gradient.wide[i];
          gradient.Set(i, bad);
          ASSERT_FALSE(SummarizeGradient(gradient.At(0), dtype, 100).finite)
              << i;
          gradient.Set(i, good);
        }
      }
      EXPECT_TRUE(SummarizeGradient(gradient.At(0), dtype, 100).finite);
    });
  }
}

TEST(NormTest, TheLargestFiniteValuesDoNotOverflow) {
  const std::vector<float> largest(10000, std::numeric_limits<float>::max());
  WithEveryInstructionSet([&] {
    const GradientSummary summary =
        SummarizeGradient(largest.data(), DType::kFloat32, 10000);
    EXPECT_TRUE(summary.finite);
    EXPECT_NEAR(summary.squared_norm /
                    (1e4 * 3.4028234663852886e38 * 3.4028234663852886e38),
                1, 1e-12);
  });
}

}  // namespace
}  // namespace terrace
