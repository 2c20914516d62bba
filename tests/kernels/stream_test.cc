#include "kernels/stream.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/instruction_sets.h"

namespace terrace {
namespace {

std::vector<float> Random(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

class StreamTest : public testing::TestWithParam<StreamKind> {};

TEST_P(StreamTest, EveryElementIsReadAndWrittenAndASecondCallRestoresIt) {
  for (const size_t count : {0u, 1u, 7u, 16u, 33u, 100u, 1003u}) {
    for (const size_t offset : {0u, 1u}) {
      const std::vector<float> p0 = Random(count + 16, 1);
      const std::vector<float> g = Random(count + 16, 2);
      WithEveryInstructionSet([&] {
        // Aligned to 64 bytes, but for the offset.
        alignas(64) static float arrays[3][1024];
        for (auto& array : arrays) {
          std::copy(p0.begin(), p0.end(), array);
        }
        const auto run = [&] {
          StreamLikeAdam(GetParam(), arrays[0] + offset, g.data() + offset,
                         arrays[1] + offset, arrays[2] + offset,
                         static_cast<int64_t>(count));
        };
        run();
        for (const auto& array : arrays) {
          for (size_t i = 0; i < p0.size(); ++i) {
            const bool inside = i >= offset && i < offset + count;
            ASSERT_EQ(Bits(array[i]), Bits(p0[i]) ^ (inside ? Bits(g[i]) : 0));
          }
        }
        run();
        for (const auto& array : arrays) {
          for (size_t i = 0; i < p0.size(); ++i) {
            ASSERT_EQ(Bits(array[i]), Bits(p0[i]));
          }
        }
      });
    }
  }
}

TEST_P(StreamTest, AReadLoopReadsEveryElementOnce) {
  for (const size_t count : {0u, 1u, 7u, 16u, 33u, 100u, 1003u}) {
    std::mt19937_64 random(count);
    std::vector<uint32_t> values(count + 2);
    for (uint32_t& value : values) value = static_cast<uint32_t>(random());
    uint32_t expected = 0;
    for (size_t i = 1; i <= count; ++i) expected ^= values[i];
    WithEveryInstructionSet([&] {
      EXPECT_EQ(StreamRead(GetParam(), values.data() + 1,
                           static_cast<int64_t>(count)),
                expected)
          << count;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, StreamTest,
                         testing::Values(StreamKind::kPlain,
                                         StreamKind::kPrefetched,
                                         StreamKind::kNonTemporal));

TEST(StreamTriadTest, AddsAScaledArray) {
  const std::vector<float> b = Random(101, 3);
  const std::vector<float> c = Random(101, 4);
  WithEveryInstructionSet([&] {
    std::vector<float> a(101);
    StreamTriad(a.data(), b.data(), c.data(), 3.0f, 101);
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(a[i], std::fma(3.0f, c[i], b[i]));
    }
  });
}

}  // namespace
}  // namespace terrace
