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

// In pieces of 64 MiB.
TEST(ChecksumTest, OfManyBytesIsThatOfOneCall) {
  constexpr size_t kPiece = size_t{64} << 20;
  std::vector<uint8_t> bytes(2 * kPiece + 4099, 1);
  for (size_t i = 0; i < bytes.size(); i += 997) bytes[i] = i % 251;
  for (const size_t size : {kPiece, kPiece + 1, 2 * kPiece, bytes.size()}) {
    EXPECT_EQ(Checksum(bytes.data(), size), XXH3_64bits(bytes.data(), size));
  }
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

#if defined(__x86_64__)
// Upper halves in use make the scalar code after it hundreds of times slower.
TEST(ChecksumTest, LeavesTheUpperHalvesOfTheVectorRegistersClear) {
  if (!__builtin_cpu_supports("avx")) GTEST_SKIP() << "no AVX here";
  const std::vector<uint8_t> bytes = RandomBytes(1 << 20);
  alignas(32) uint64_t registers[8][4];
  const uint64_t hash = Checksum(bytes.data(), bytes.size());
  asm volatile(
      "vmovups %%ymm0, 0(%0)\n vmovups %%ymm1, 32(%0)\n"
      "vmovups %%ymm2, 64(%0)\n vmovups %%ymm3, 96(%0)\n"
      "vmovups %%ymm4, 128(%0)\n vmovups %%ymm5, 160(%0)\n"
      "vmovups %%ymm6, 192(%0)\n vmovups %%ymm7, 224(%0)\n"
      :
      : "r"(registers)
      : "memory");
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(registers[i][2] | registers[i][3], 0u) << "register " << i;
  }
  EXPECT_EQ(hash, XXH3_64bits(bytes.data(), bytes.size()));
}
#endif

}  // namespace
}  // namespace terrace
