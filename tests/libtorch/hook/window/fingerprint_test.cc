#include "libtorch/hook/window/fingerprint.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

TEST(Fingerprint, EveryBitCounts) {
  for (const size_t size : {0, 1, 7, 8, 9, 31, 32, 33, 100}) {
    std::vector<std::byte> bytes(size);
    std::set<uint64_t> seen = {Fingerprint(bytes)};
    EXPECT_EQ(*seen.begin(), Fingerprint(bytes));
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_TRUE(seen.insert(Fingerprint(bytes)).second) << bit;
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
}

TEST(Fingerprint, TheOrderOfWordsCounts) {
  std::vector<std::byte> bytes(64);
  bytes[0] = std::byte{1};
  bytes[8] = std::byte{2};
  bytes[32] = std::byte{3};
  const uint64_t as_is = Fingerprint(bytes);
  std::vector<std::byte> lanes = bytes;
  std::swap(lanes[0], lanes[8]);  // of one block
  std::vector<std::byte> blocks = bytes;
  std::swap(blocks[0], blocks[32]);
  EXPECT_NE(as_is, Fingerprint(lanes));
  EXPECT_NE(as_is, Fingerprint(blocks));
}

}  // namespace
}  // namespace terrace
