#include "policies/path_placement.h"

#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

TEST(PlacementTest, NoPathAtAll) { EXPECT_EQ(ChoosePath({}, 1), -1); }

TEST(PlacementTest, NoUsablePath) {
  const std::vector<PathLoad> paths = {{.usable = false}, {.usable = false}};
  EXPECT_EQ(ChoosePath(paths, 1), -1);
}

TEST(PlacementTest, TiesGoToTheLowestIndex) {
  const std::vector<PathLoad> paths = {{.usable = false}, {}, {}};
  EXPECT_EQ(ChoosePath(paths, 1), 1);
}

TEST(PlacementTest, TheSlowPathGetsNothingItWouldFinishLast) {
  // 10 bytes take 10 s on the slow one, (90 + 10) / 20 = 5 s on the fast one.
  const std::vector<PathLoad> paths = {
      {.bytes_per_second = 1}, {.placed_bytes = 90, .bytes_per_second = 20}};
  EXPECT_EQ(ChoosePath(paths, 10), 1);
}

TEST(PlacementTest, AnEmptyPathIsNotChosenForBeingEmpty) {
  // 30 s empty and slow, 2 s full and fast: the size counts, not the load.
  const std::vector<PathLoad> paths = {
      {.placed_bytes = 0, .bytes_per_second = 1},
      {.placed_bytes = 30, .bytes_per_second = 30}};
  EXPECT_EQ(ChoosePath(paths, 30), 1);
}

TEST(PlacementTest, SharesFollowTheRates) {
  std::vector<PathLoad> paths = {
      {.bytes_per_second = 3}, {.bytes_per_second = 1}, {.usable = false}};
  for (int i = 0; i < 4000; ++i) {
    const int path = ChoosePath(paths, 8);
    ASSERT_GE(path, 0);
    ASSERT_LE(path, 1);
    paths[static_cast<size_t>(path)].placed_bytes += 8;
  }
  EXPECT_EQ(paths[0].placed_bytes, 3 * 8000);
  EXPECT_EQ(paths[1].placed_bytes, 1 * 8000);
}

TEST(PlacementTest, ARoundTripIsReadAndWrittenBack) {
  // 1/6 + 1/3 of a second for each byte.
  EXPECT_DOUBLE_EQ(RoundTripRate({6, 3}), 2);
  EXPECT_DOUBLE_EQ(RoundTripRate({6, 0}), 3);
  EXPECT_DOUBLE_EQ(RoundTripRate({0, 6}), 3);
  EXPECT_EQ(RoundTripRate({}), 0);
}

TEST(PlacementTest, ASizeBeyondCountingHasAnAnswerToo) {
  const PathLoad paths[] = {{.placed_bytes = int64_t{1} << 40}, {}};
  EXPECT_EQ(ChoosePath(paths, INT64_MAX), 1);
}

}  // namespace
}  // namespace terrace
