#include "runtime/motion/seal.h"

#include <xxhash.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class SealTest : public testing::Test {
 protected:
  SealTest() : copy_(kTensorHeaderBytes + 8192, std::byte{7}) {
    Seal(HeaderOf(tensor_, kPath, kPlace, 5), absl::MakeSpan(copy_));
  }

  // What is wrong with the copy, as one read from there.
  std::string Wrong(uint64_t path, const Extent& place, uint64_t generation) {
    const absl::Status status =
        CheckSeal(copy_, HeaderOf(tensor_, path, place, generation));
    EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
    return std::string(status.message());
  }

  static constexpr uint64_t kPath = 77;
  static constexpr Extent kPlace = {16384, 12288};
  const Tensor tensor_{{.name = "a", .size_bytes = 5000, .global_offset = 123},
                       TensorId{3}};
  std::vector<std::byte> copy_;
};

TEST_F(SealTest, TheHeaderIsOfTheTensorAndItsPlace) {
  const ExtentHeader header = HeaderOf(tensor_, kPath, kPlace, 5);
  EXPECT_EQ(header.path_id, 77u);
  EXPECT_EQ(header.own_offset, 16384);
  EXPECT_EQ(header.tensor_id, 3);
  EXPECT_EQ(header.generation, 5u);
  EXPECT_EQ(header.payload_bytes, 5000);
  EXPECT_EQ(header.global_offset, 123);
  EXPECT_EQ(header.name, "a");
}

TEST_F(SealTest, TheHashIsOfThePayloadAlone) {
  ExtentHeader found;
  ASSERT_TRUE(
      DecodeExtentHeader(
          absl::MakeConstSpan(copy_).subspan(0, kTensorHeaderBytes), &found)
          .ok());
  EXPECT_EQ(found.payload_hash,
            XXH3_64bits(copy_.data() + kTensorHeaderBytes, 5000));
}

TEST_F(SealTest, WhatWasSealedPasses) {
  EXPECT_EQ(Wrong(kPath, kPlace, 5), "");
  copy_.back() = std::byte{0};  // behind the payload
  EXPECT_EQ(Wrong(kPath, kPlace, 5), "");
}

TEST_F(SealTest, EveryFieldThatDiffersIsNamed) {
  EXPECT_THAT(Wrong(78, kPlace, 5), HasSubstr("path"));
  EXPECT_THAT(Wrong(kPath, {4096, 12288}, 5), HasSubstr("offset"));
  EXPECT_THAT(Wrong(kPath, kPlace, 6), HasSubstr("generation"));
}

TEST_F(SealTest, AFlippedBitOfThePayloadIsFound) {
  copy_[kTensorHeaderBytes + 4999] ^= std::byte{1};
  EXPECT_THAT(Wrong(kPath, kPlace, 5), HasSubstr("hash"));
}

TEST_F(SealTest, ATornHeaderIsFound) {
  copy_[100] ^= std::byte{1};
  EXPECT_NE(Wrong(kPath, kPlace, 5), "");
}

}  // namespace
}  // namespace terrace
