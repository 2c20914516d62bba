#include "kernels/checksum.h"

#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "xxhash.h"

namespace terrace {
namespace {

std::vector<uint8_t> RandomBytes(size_t size) {
  std::mt19937_64 random(7);
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

TEST(ChecksumTest, OfNothingIsTheSpecifiedConstant) {
  EXPECT_EQ(Checksum(nullptr, 0), 0x2D06800538D394C2u);
}

TEST(ChecksumTest, EqualsThePlainLibraryAtEverySizeAndAlignment) {
  const std::vector<uint8_t> bytes = RandomBytes(1 << 20);
  for (size_t size = 0; size < 2100; ++size) {
    const uint8_t* const at = bytes.data() + size % 67;
    ASSERT_EQ(Checksum(at, size), XXH3_64bits(at, size)) << size;
  }
  EXPECT_EQ(Checksum(bytes.data() + 1, bytes.size() - 1),
            XXH3_64bits(bytes.data() + 1, bytes.size() - 1));
}

TEST(ChecksumTest, EveryFlippedBitChangesIt) {
  std::vector<uint8_t> bytes = RandomBytes(4096 + 13);
  const uint64_t before = Checksum(bytes.data(), bytes.size());
  for (size_t bit = 0; bit < bytes.size() * 8; bit += 5) {
    const auto mask = static_cast<uint8_t>(1u << (bit % 8));
    bytes[bit / 8] ^= mask;
    ASSERT_NE(Checksum(bytes.data(), bytes.size()), before) << bit;
    bytes[bit / 8] ^= mask;
  }
}

}  // namespace
}  // namespace terrace
