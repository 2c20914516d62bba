#include "runtime/tensor/pin_book.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/tensor/tensor_fixture.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kQueue = 4;

class PinBookTest : public TensorTest {
 protected:
  uint64_t Pin(Access access, int64_t queue = kQueue) {
    tensor_.Hold(kDramTier, access);
    return pins_.Grant(tensor_, kDramTier, queue, access);
  }

  PinBook pins_;
};

// What a pin was of.
enum class Before : uint8_t {
  kNew,      // never written; of an overwrite alone
  kCurrent,  // whole below as well, generation 1
  kDirty,    // newer than what is below, generation 2
};

struct EndRow {
  Access access;
  PinEnd end;
  Before before;
  bool dirty;
  bool drop;
  bool lost;
  uint64_t generation;  // afterwards
};

constexpr auto kRead = Access::kRead;
constexpr auto kUpdate = Access::kUpdate;
constexpr auto kOverwrite = Access::kOverwrite;
constexpr auto kPublish = PinEnd::kPublish;
constexpr auto kUnchanged = PinEnd::kUnchanged;
constexpr auto kDiscard = PinEnd::kDiscard;

constexpr EndRow kRows[] = {
    // A reader changes nothing; what it discards goes if it is below too.
    {kRead, kPublish, Before::kCurrent, false, false, false, 1},
    {kRead, kUnchanged, Before::kCurrent, false, false, false, 1},
    {kRead, kDiscard, Before::kCurrent, false, true, false, 1},
    {kRead, kPublish, Before::kDirty, true, false, false, 2},
    {kRead, kUnchanged, Before::kDirty, true, false, false, 2},
    {kRead, kDiscard, Before::kDirty, true, false, false, 2},
    // An update that changed nothing leaves the copy as it was.
    {kUpdate, kPublish, Before::kCurrent, true, false, false, 2},
    {kUpdate, kUnchanged, Before::kCurrent, false, false, false, 1},
    {kUpdate, kDiscard, Before::kCurrent, false, true, false, 1},
    {kUpdate, kPublish, Before::kDirty, true, false, false, 3},
    {kUpdate, kUnchanged, Before::kDirty, true, false, false, 2},
    {kUpdate, kDiscard, Before::kDirty, false, true, true, 2},
    // What was to be overwritten is undefined, unless it is the only one.
    {kOverwrite, kPublish, Before::kNew, true, false, false, 1},
    {kOverwrite, kUnchanged, Before::kNew, false, true, false, 0},
    {kOverwrite, kDiscard, Before::kNew, false, true, false, 0},
    {kOverwrite, kPublish, Before::kCurrent, true, false, false, 2},
    {kOverwrite, kUnchanged, Before::kCurrent, false, true, false, 1},
    {kOverwrite, kDiscard, Before::kCurrent, false, true, false, 1},
    {kOverwrite, kPublish, Before::kDirty, true, false, false, 3},
    {kOverwrite, kUnchanged, Before::kDirty, true, false, false, 2},
    {kOverwrite, kDiscard, Before::kDirty, false, true, true, 2},
};

class PinEndTest : public PinBookTest,
                   public testing::WithParamInterface<EndRow> {};

TEST_P(PinEndTest, MeansWhatTheTableSays) {
  const EndRow& row = GetParam();
  if (row.before == Before::kNew) {
    tensor_.GivePlace(disk_.Give(0));
    tensor_.BeginOverwrite(memory_.Give(0));
  } else {
    Rest();
    Fetch();
    if (row.before == Before::kDirty) Update();
  }
  const uint64_t token = Pin(row.access);
  const absl::StatusOr<EndedPin> ended = pins_.End(token, row.end);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->tensor, &tensor_);
  EXPECT_EQ(ended->queue, kQueue);
  EXPECT_EQ(ended->tier, kDramTier);
  EXPECT_EQ(ended->dirty, row.dirty);
  EXPECT_EQ(ended->drop, row.drop);
  EXPECT_EQ(ended->lost, row.lost);
  EXPECT_EQ(tensor_.generation(), row.generation);
  EXPECT_FALSE(tensor_.Pinned(kDramTier));
  EXPECT_FALSE(tensor_.write_pinned());
  EXPECT_TRUE(pins_.empty());
}

INSTANTIATE_TEST_SUITE_P(AllEnds, PinEndTest, testing::ValuesIn(kRows));

TEST_F(PinBookTest, OnlyTheLastReaderSaysAnything) {
  Rest();
  Fetch();
  const uint64_t first = Pin(kRead);
  const uint64_t last = Pin(kRead);
  EXPECT_FALSE(pins_.End(first, kDiscard)->drop);
  EXPECT_TRUE(pins_.IsPinned(tensor_));
  EXPECT_TRUE(pins_.End(last, kDiscard)->drop);
  EXPECT_FALSE(pins_.IsPinned(tensor_));
}

TEST_F(PinBookTest, ATokenEndsOnce) {
  Rest();
  Fetch();
  const uint64_t token = Pin(kRead);
  EXPECT_TRUE(pins_.End(token, kUnchanged).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(pins_.End(token, kUnchanged).status()));
}

TEST_F(PinBookTest, AnUnknownTokenIsAnErrorThatNamesIt) {
  const absl::Status status = pins_.End(12345, kPublish).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("12345"));
}

TEST_F(PinBookTest, NoTwoPinsHaveOneToken) {
  Rest();
  Fetch();
  const uint64_t first = Pin(kRead);
  EXPECT_NE(Pin(kRead), first);
  ASSERT_TRUE(pins_.End(first, kUnchanged).ok());
  EXPECT_NE(Pin(kRead), first);  // nor one that ended
}

TEST_F(PinBookTest, AHoldIsAPinOfAnother) {
  Rest();
  Fetch();
  EXPECT_FALSE(pins_.WhoPins(tensor_, kDramTier, kQueue).own);
  EXPECT_FALSE(pins_.WhoPins(tensor_, kDramTier, kQueue).others);
  tensor_.Hold(kDramTier, kRead);
  EXPECT_FALSE(pins_.WhoPins(tensor_, kDramTier, kQueue).own);
  EXPECT_TRUE(pins_.WhoPins(tensor_, kDramTier, kQueue).others);
  EXPECT_FALSE(pins_.IsPinned(tensor_));
}

TEST_F(PinBookTest, OwnPinsAndThoseOfOthersAreTold) {
  Rest();
  Fetch();
  Pin(kRead);
  EXPECT_TRUE(pins_.WhoPins(tensor_, kDramTier, kQueue).own);
  EXPECT_FALSE(pins_.WhoPins(tensor_, kDramTier, kQueue).others);
  EXPECT_FALSE(pins_.WhoPins(tensor_, kDramTier, 5).own);
  EXPECT_TRUE(pins_.WhoPins(tensor_, kDramTier, 5).others);
  Pin(kRead, 5);
  EXPECT_TRUE(pins_.WhoPins(tensor_, kDramTier, kQueue).own);
  EXPECT_TRUE(pins_.WhoPins(tensor_, kDramTier, kQueue).others);
}

TEST_F(PinBookTest, SomeOfTheNames) {
  Rest();
  Fetch();
  for (int i = 0; i < 3; ++i) Pin(kRead);
  EXPECT_EQ(pins_.size(), 3u);
  EXPECT_THAT(pins_.Names(2), ElementsAre("weights", "weights"));
  EXPECT_THAT(pins_.Names(9).size(), 3u);
}

using PinBookDeathTest = PinBookTest;

TEST_F(PinBookDeathTest, APinBeginsAsAHold) {
  Rest();
  Fetch();
  EXPECT_DEATH(pins_.Grant(tensor_, kDramTier, kQueue, kRead),
               "internal error");
}

}  // namespace
}  // namespace terrace
