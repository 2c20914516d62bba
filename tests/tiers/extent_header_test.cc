#include "tiers/extent_header.h"

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/checksum.h"

namespace terrace {
namespace {

using Block = std::vector<std::byte>;

ExtentHeader Example() {
  return {.path_id = 0x0123456789abcdef,
          .own_offset = int64_t{5} << 40,
          .tensor_id = 77,
          .generation = 0xfedcba9876543210,
          .step = 12,
          .payload_bytes = 8 << 20,
          .payload_hash = 0x1122334455667788,
          .global_offset = 123456789,
          .name = "layers.3.attention"};
}

Block Encoded(const ExtentHeader& header) {
  Block block(kTensorHeaderBytes, std::byte{0xee});
  EncodeExtentHeader(header, absl::MakeSpan(block));
  return block;
}

absl::Status Decode(const Block& block) {
  ExtentHeader header;
  return DecodeExtentHeader(block, &header);
}

TEST(ExtentHeaderTest, ComesBackAsItWas) {
  ExtentHeader found;
  ASSERT_TRUE(DecodeExtentHeader(Encoded(Example()), &found).ok());
  EXPECT_EQ(found, Example());
}

TEST(ExtentHeaderTest, NegativeNumbersAndAnEmptyNameComeBack) {
  ExtentHeader header = Example();
  header.step = -1;
  header.tensor_id = INT64_MIN;
  header.name.clear();
  ExtentHeader found;
  found.name = "stale";
  ASSERT_TRUE(DecodeExtentHeader(Encoded(header), &found).ok());
  EXPECT_EQ(found, header);
}

TEST(ExtentHeaderTest, ALongNameIsCutAndStillMatches) {
  ExtentHeader header = Example();
  header.name = std::string(1000, 'n');
  ExtentHeader found;
  ASSERT_TRUE(DecodeExtentHeader(Encoded(header), &found).ok());
  EXPECT_EQ(found.name, std::string(255, 'n'));
  EXPECT_TRUE(MatchExtentHeader(found, header).ok());
}

TEST(ExtentHeaderTest, TheBytesAreLittleEndianAndZeroPadded) {
  const Block block = Encoded(Example());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(block.data()), 8),
            std::string("TERRACE\0", 8));
  EXPECT_EQ(block[16], std::byte{0xef});  // the path id's lowest byte
  EXPECT_EQ(block[23], std::byte{0x01});
  for (size_t i = 88 + Example().name.size(); i < 4088; ++i) {
    ASSERT_EQ(block[i], std::byte{0}) << "byte " << i;
  }
}

TEST(ExtentHeaderTest, EveryFlippedBitIsFound) {
  const Block good = Encoded(Example());
  for (size_t byte = 0; byte < good.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      Block bad = good;
      bad[byte] ^= std::byte{1} << bit;
      ASSERT_TRUE(absl::IsDataLoss(Decode(bad)))
          << "byte " << byte << ", bit " << bit;
    }
  }
}

// Sectors of 512 bytes, each old or new: only all old and all new are whole,
// unless the sectors in which the two differ are all of one kind.
TEST(ExtentHeaderTest, EveryTornWriteIsFound) {
  const ExtentHeader older = Example();
  ExtentHeader newer = older;
  ++newer.generation;
  ++newer.step;
  newer.payload_hash = 99;
  const Block before = Encoded(older);
  const Block after = Encoded(newer);
  for (int mask = 0; mask < 256; ++mask) {
    Block torn = before;
    for (int sector = 0; sector < 8; ++sector) {
      if ((mask & (1 << sector)) == 0) continue;
      std::copy_n(after.begin() + sector * 512, 512,
                  torn.begin() + sector * 512);
    }
    const bool whole = torn == before || torn == after;
    EXPECT_EQ(Decode(torn).ok(), whole) << "mask " << mask;
    // The fields lie in the first sector, the hash in the last.
    EXPECT_EQ(whole, (mask & 0x81) == 0 || (mask & 0x81) == 0x81);
  }
}

TEST(ExtentHeaderTest, ATornFirstWriteOverZerosIsFound) {
  const Block after = Encoded(Example());
  EXPECT_TRUE(absl::IsDataLoss(Decode(Block(kTensorHeaderBytes))));
  for (size_t kept = 512; kept < 4096; kept += 512) {
    Block torn(kTensorHeaderBytes);
    std::copy_n(after.begin(), kept, torn.begin());
    EXPECT_TRUE(absl::IsDataLoss(Decode(torn))) << kept << " bytes kept";
  }
}

TEST(ExtentHeaderTest, AnotherFormatIsNamed) {
  Block block = Encoded(Example());
  block[8] = std::byte{9};
  const absl::Status status = Decode(block);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_NE(status.ToString().find("format"), std::string::npos) << status;
}

TEST(ExtentHeaderTest, ANameLongerThanItsRoomIsFound) {
  Block block = Encoded(Example());
  block[80] = std::byte{0};
  block[81] = std::byte{1};  // 256, under a hash that fits
  const uint64_t hash = Checksum(block.data(), 4088);
  for (size_t i = 0; i < 8; ++i) {
    block[4088 + i] = static_cast<std::byte>(hash >> (8 * i));
  }
  const absl::Status status = Decode(block);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_NE(status.ToString().find("name length"), std::string::npos);
}

TEST(ExtentHeaderTest, RandomBytesAreNoHeader) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    Block block(kTensorHeaderBytes);
    for (std::byte& byte : block) byte = static_cast<std::byte>(random());
    if (i % 2 == 0) std::copy_n(Encoded(Example()).begin(), 16, block.begin());
    EXPECT_TRUE(absl::IsDataLoss(Decode(block)));
  }
}

TEST(ExtentHeaderTest, EveryFieldThatDiffersIsNamed) {
  struct Case {
    const char* field;
    std::function<void(ExtentHeader&)> change;
  };
  const std::vector<Case> cases = {
      {"path id", [](ExtentHeader& h) { h.path_id ^= 1; }},
      {"own offset", [](ExtentHeader& h) { h.own_offset += 4096; }},
      {"tensor id", [](ExtentHeader& h) { ++h.tensor_id; }},
      {"generation", [](ExtentHeader& h) { --h.generation; }},
      {"payload bytes", [](ExtentHeader& h) { h.payload_bytes /= 2; }},
      {"payload hash", [](ExtentHeader& h) { h.payload_hash ^= 1; }},
      {"global offset", [](ExtentHeader& h) { ++h.global_offset; }},
      {"name", [](ExtentHeader& h) { h.name += "x"; }},
  };
  for (const Case& c : cases) {
    ExtentHeader found = Example();
    c.change(found);
    const absl::Status status = MatchExtentHeader(found, Example());
    EXPECT_TRUE(absl::IsDataLoss(status)) << c.field;
    EXPECT_NE(status.ToString().find(c.field), std::string::npos) << status;
  }
  const absl::Status status =
      MatchExtentHeader({.own_offset = 8192}, {.own_offset = 4096});
  EXPECT_NE(status.ToString().find("8192, expected 4096"), std::string::npos)
      << status;
}

TEST(ExtentHeaderTest, TheStepIsNotCompared) {
  ExtentHeader found = Example();
  found.step += 5;
  EXPECT_TRUE(MatchExtentHeader(found, Example()).ok());
}

}  // namespace
}  // namespace terrace
