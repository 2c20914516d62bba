#include "optimizer/chunks/chunk_table.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

// Parameters of one full chunk and a half, then of next to nothing.
class ChunkTableTest : public testing::Test {
 protected:
  ChunkTableTest() {
    specs_ = {{.dtype = DType::kFloat32, .count = 0},
              {.dtype = DType::kFloat32, .count = 0},
              {.dtype = DType::kFloat32, .count = 10}};
    full_ = ChunkElements(DType::kFloat32, kSmallestChunkBytes);
    specs_[0].count = full_ + full_ / 2;
    std::vector<Chunk> chunks = CutIntoChunks(specs_, kSmallestChunkBytes);
    const std::vector<TensorId> tensors(chunks.size());
    table_.Append(std::move(chunks), tensors, specs_.size());
  }

  std::vector<ParameterSpec> specs_;
  int64_t full_ = 0;
  ChunkTable table_;
};

TEST_F(ChunkTableTest, ARangeIsCutWhereChunksMeet) {
  ASSERT_EQ(table_.size(), 2);
  const std::vector<ChunkPiece> pieces = table_.Pieces(0, full_ - 5, 20);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].chunk, 0);
  EXPECT_EQ(pieces[0].chunk_offset, full_ - 5);
  EXPECT_EQ(pieces[0].range_offset, 0);
  EXPECT_EQ(pieces[0].count, 5);
  EXPECT_EQ(pieces[1].chunk, 1);
  EXPECT_EQ(pieces[1].chunk_offset, 0);
  EXPECT_EQ(pieces[1].range_offset, 5);
  EXPECT_EQ(pieces[1].count, 15);
}

TEST_F(ChunkTableTest, AParameterStartsWhereItsSegmentDoes) {
  const std::vector<ChunkPiece> pieces = table_.Pieces(2, 3, 7);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].chunk, 1);
  EXPECT_EQ(pieces[0].segment, 1u);
  EXPECT_EQ(pieces[0].chunk_offset, full_ / 2 + 3);
}

TEST_F(ChunkTableTest, AnEmptyParameterOrRangeHasNoPieces) {
  EXPECT_TRUE(table_.Pieces(1, 0, 0).empty());
  EXPECT_TRUE(table_.Pieces(0, 7, 0).empty());
}

TEST_F(ChunkTableTest, AChunkComesWithTheLastOfItsParameters) {
  const std::vector<int> later = {1, 2, 0}, sooner = {0, 2, 1}, some = {2};
  EXPECT_EQ(table_.InOrder(later), (std::vector<int>{0, 1}));
  EXPECT_EQ(table_.InOrder(sooner), (std::vector<int>{0, 1}));
  EXPECT_EQ(table_.InOrder(some), (std::vector<int>{1}));
  EXPECT_TRUE(table_.InOrder({}).empty());
  EXPECT_EQ(table_.first_chunk(0), 0);
  EXPECT_EQ(table_.first_chunk(2), 1);
}

TEST_F(ChunkTableTest, AStepFillsTheSegmentsThatHaveAGradient) {
  const float gradient = 0;
  std::vector<ParameterData> parameters(3);
  parameters[2].gradient = &gradient;
  EXPECT_EQ(table_.WithGradient(parameters), (std::vector<bool>{false, true}));
  table_.SetUpdated(1, parameters);
  EXPECT_FALSE(table_.contents(1).fresh);
  EXPECT_EQ(table_.contents(1).segments[0], kHoldsMaster);  // fp32: needs none
  EXPECT_EQ(table_.contents(1).segments[1], kHoldsAll);
  EXPECT_TRUE(table_.contents(0).fresh);
  table_.Clear();
  EXPECT_TRUE(table_.contents(1).fresh);
  EXPECT_EQ(table_.contents(1).segments[1], kHoldsMaster);
}

}  // namespace
}  // namespace terrace
