#include "kernels/convert.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "terrace/adam.h"
#include "tests/kernels/instruction_sets.h"

namespace terrace {
namespace {

// What the bits of a 16-bit format mean, by its definition in IEEE 754.
double Meaning(DType dtype, uint16_t bits) {
  const int fraction_bits = dtype == DType::kBFloat16 ? 7 : 10;
  const int exponent_bits = 15 - fraction_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7FFF) >> fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction != 0 ? std::nan("")
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) {
    return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  }
  return sign * std::ldexp(fraction + (1 << fraction_bits),
                           exponent - bias - fraction_bits);
}

std::vector<uint16_t> AllBits() {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  return all;
}

uint16_t Infinity(DType dtype) {
  return dtype == DType::kBFloat16 ? 0x7F80 : 0x7C00;
}

class ConvertTest : public testing::TestWithParam<DType> {
 protected:
  static std::vector<uint16_t> Narrow(const std::vector<float>& values) {
    std::vector<uint16_t> bits(values.size());
    NarrowFromFloat(GetParam(), values.data(), bits.data(),
                    static_cast<int64_t>(values.size()));
    return bits;
  }
};

TEST_P(ConvertTest, WideningIsExactForAllValues) {
  const std::vector<uint16_t> all = AllBits();
  WithEveryInstructionSet([&] {
    std::vector<float> wide(all.size());
    WidenToFloat(GetParam(), all.data(), wide.data(), 65536);
    for (const uint16_t bits : all) {
      const double meaning = Meaning(GetParam(), bits);
      const float reference = WidenReference(GetParam(), bits);
      if (std::isnan(meaning)) {
        ASSERT_TRUE(std::isnan(wide[bits]) && std::isnan(reference)) << bits;
      } else {
        ASSERT_EQ(static_cast<double>(wide[bits]), meaning) << bits;
        ASSERT_EQ(std::signbit(wide[bits]), (bits & 0x8000) != 0) << bits;
        ASSERT_EQ(std::bit_cast<uint32_t>(reference),
                  std::bit_cast<uint32_t>(wide[bits]))
            << bits;
      }
    }
  });
}

TEST_P(ConvertTest, EveryFiniteValueSurvivesARoundTrip) {
  std::vector<uint16_t> finite;
  std::vector<float> wide;
  for (const uint16_t bits : AllBits()) {
    if (!std::isfinite(Meaning(GetParam(), bits))) continue;
    finite.push_back(bits);
    wide.push_back(static_cast<float>(Meaning(GetParam(), bits)));
  }
  WithEveryInstructionSet([&] { EXPECT_EQ(Narrow(wide), finite); });
}

// Between each two neighbours: the middle goes to the even one, a bit less and
// a bit more to the nearer one; beyond half a step above the largest lies
// infinity.
TEST_P(ConvertTest, NarrowingRoundsToNearestEven) {
  std::vector<float> values;
  std::vector<uint16_t> expected;
  for (uint16_t bits = 0; bits < Infinity(GetParam()); ++bits) {
    const auto up = static_cast<uint16_t>(bits + 1);
    const double low = Meaning(GetParam(), bits);
    const double high =
        up == Infinity(GetParam())
            ? 2 * low - Meaning(GetParam(), static_cast<uint16_t>(bits - 1))
            : Meaning(GetParam(), up);
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(static_cast<double>(middle), (low + high) / 2);
    for (const uint16_t sign : {0, 0x8000}) {
      const float s = sign == 0 ? 1.0f : -1.0f;
      const auto add = [&](float value, uint16_t result) {
        values.push_back(s * value);
        expected.push_back(static_cast<uint16_t>(sign | result));
      };
      add(middle, bits % 2 == 0 ? bits : up);
      add(std::nextafter(middle, 0.0f), bits);
      add(std::nextafter(middle, 3.4e38f), up);
    }
  }
  WithEveryInstructionSet([&] {
    const std::vector<uint16_t> narrow = Narrow(values);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(narrow[i], expected[i]) << values[i];
      ASSERT_EQ(NarrowReference(GetParam(), values[i]), expected[i])
          << values[i];
    }
  });
}

TEST_P(ConvertTest, InfinityStaysAndANanStaysOne) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {infinity,
                                     -infinity,
                                     std::bit_cast<float>(0x7FC00001u),
                                     std::bit_cast<float>(0xFFC00001u),
                                     std::bit_cast<float>(0x7F800001u),
                                     std::bit_cast<float>(0xFFFFFFFFu)};
  WithEveryInstructionSet([&] {
    // Enough copies for whole vectors, and the scalar end.
    std::vector<float> many;
    for (int i = 0; i < 7; ++i) {
      many.insert(many.end(), values.begin(), values.end());
    }
    const std::vector<uint16_t> narrow = Narrow(many);
    for (size_t i = 0; i < many.size(); ++i) {
      ASSERT_EQ(narrow[i], NarrowReference(GetParam(), many[i])) << i;
      if (!std::isnan(many[i])) {
        ASSERT_EQ(narrow[i], Infinity(GetParam()) | (many[i] < 0 ? 0x8000 : 0));
      } else if (GetParam() == DType::kBFloat16) {
        ASSERT_EQ(narrow[i], 0x7FC0);
      } else {
        ASSERT_EQ(narrow[i] & 0x7E00, 0x7E00);
      }
    }
  });
}

TEST_P(ConvertTest, RandomBitsOfEverySizeEqualTheReference) {
  std::mt19937 random(11);
  std::vector<float> values(200);
  for (float& value : values) value = std::bit_cast<float>(uint32_t(random()));
  WithEveryInstructionSet([&] {
    for (int64_t count = 0; count <= 100; ++count) {
      const int64_t offset = count % 7;
      std::vector<uint16_t> target(128, 0xABCD);
      NarrowFromFloat(GetParam(), values.data() + offset,
                      target.data() + offset, count);
      for (int64_t i = 0; i < 128; ++i) {
        const bool inside = i >= offset && i < offset + count;
        ASSERT_EQ(target[i],
                  inside ? NarrowReference(GetParam(), values[i]) : 0xABCD)
            << count << " " << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Formats, ConvertTest,
                         testing::Values(DType::kBFloat16, DType::kFloat16),
                         [](const testing::TestParamInfo<DType>& dtype) {
                           return std::string(DTypeName(dtype.param));
                         });

}  // namespace
}  // namespace terrace
