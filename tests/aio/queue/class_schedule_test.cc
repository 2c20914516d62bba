// Whose piece goes next, without a device: shares, silence, what is due first.
#include "aio/queue/class_schedule.h"

#include <array>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr int64_t kPiece = 256 << 10;
constexpr int64_t kAll = int64_t{1} << 40;

class ClassScheduleTest : public testing::Test {
 protected:
  Transfer* Add(IoClass io_class, int64_t size_bytes = kAll,
                absl::Duration timeout = absl::InfiniteDuration(),
                IoDirection direction = IoDirection::kRead) {
    Transfer& transfer = transfers_.emplace_back();
    transfer.request.io_class = io_class;
    transfer.request.direction = direction;
    transfer.request.size_bytes = size_bytes;
    transfer.request.timeout = timeout;
    transfer.order = static_cast<int64_t>(transfers_.size());
    schedule_.Add(&transfer, kPiece);
    return &transfer;
  }
  // Issues the next piece; whose it was, null: nothing is left.
  Transfer* Issue() {
    Transfer* const next = schedule_.Next(kPiece);
    if (next == nullptr) return nullptr;
    const int64_t bytes = next->NextPieceBytes(kPiece);
    schedule_.Charge(bytes);
    next->issued_bytes += bytes;
    if (next->all_issued()) {
      EXPECT_TRUE(schedule_.Remove(*next));
    }
    return next;
  }
  // How many of `count` pieces each class gets.
  std::array<int, kIoClasses> Shares(int count) {
    std::array<int, kIoClasses> shares = {};
    for (int i = 0; i < count; ++i) {
      ++shares[static_cast<size_t>(Issue()->request.io_class)];
    }
    return shares;
  }

  std::deque<Transfer> transfers_;
  const int weights_[kIoClasses] = {4, 3, 2, 1};
  ClassSchedule schedule_{weights_};
};

TEST_F(ClassScheduleTest, EachClassGetsItsShareOfTheBytes) {
  Add(IoClass::kDemand);
  Add(IoClass::kForeseen);
  Add(IoClass::kPrefetch);
  Add(IoClass::kWriteBack);
  const std::array<int, kIoClasses> shares = Shares(1000);
  EXPECT_NEAR(shares[0], 400, 4);
  EXPECT_NEAR(shares[1], 300, 4);
  EXPECT_NEAR(shares[2], 200, 4);
  EXPECT_NEAR(shares[3], 100, 4);
}

TEST_F(ClassScheduleTest, WhatIsSilentLeavesItsShareToTheOthers) {
  Add(IoClass::kDemand);
  Add(IoClass::kWriteBack);
  const std::array<int, kIoClasses> shares = Shares(500);
  EXPECT_NEAR(shares[0], 400, 4);
  EXPECT_NEAR(shares[3], 100, 4);
}

TEST_F(ClassScheduleTest, TheMostUrgentIsKnownWhoseverTurnItIs) {
  Add(IoClass::kWriteBack);
  EXPECT_EQ(schedule_.MostUrgent(), IoClass::kWriteBack);
  Transfer* const demand = Add(IoClass::kDemand);
  Add(IoClass::kPrefetch);
  for (int i = 0; i < 20; ++i) {
    Issue();
    EXPECT_EQ(schedule_.MostUrgent(), IoClass::kDemand);
  }
  EXPECT_TRUE(schedule_.Remove(*demand));
  EXPECT_EQ(schedule_.MostUrgent(), IoClass::kPrefetch);
}

TEST_F(ClassScheduleTest, SilenceSavesUpNoShare) {
  Add(IoClass::kWriteBack);
  Shares(1000);
  Add(IoClass::kPrefetch);
  EXPECT_NEAR(Shares(300)[2], 200, 4);
}

TEST_F(ClassScheduleTest, WhatIsWaitedForGoesNextOutOfSilence) {
  Add(IoClass::kPrefetch);
  Add(IoClass::kWriteBack);
  for (const IoClass awaited : {IoClass::kForeseen, IoClass::kDemand}) {
    for (int i = 0; i < 20; ++i) {
      Shares(i);
      Transfer* const next = Add(awaited, kPiece);
      EXPECT_EQ(Issue(), next);
    }
  }
}

TEST_F(ClassScheduleTest, WhatWasForeseenTakesNoTurnFromADemand) {
  Add(IoClass::kDemand);
  Add(IoClass::kWriteBack);
  int demands = 0;
  for (int i = 0; i < 700; ++i) {
    Add(IoClass::kForeseen, kPiece);
    demands += Issue()->request.io_class == IoClass::kDemand;
  }
  EXPECT_NEAR(demands, 350, 8);  // 4 of 4 + 3 + 1
}

TEST_F(ClassScheduleTest, ADemandGoesBeforeWhatWasForeseen) {
  Add(IoClass::kForeseen);
  Shares(7);
  Transfer* const demand = Add(IoClass::kDemand, kPiece);
  EXPECT_EQ(Issue(), demand);
}

TEST_F(ClassScheduleTest, WithinAClassWhoIsDueFirstThenWhoCameFirst) {
  Transfer* const third = Add(IoClass::kPrefetch, kPiece);
  Transfer* const fourth = Add(IoClass::kPrefetch, kPiece);
  Transfer* const second = Add(IoClass::kPrefetch, kPiece, absl::Seconds(2));
  Transfer* const first = Add(IoClass::kPrefetch, kPiece, absl::Seconds(1));
  for (Transfer* const expected : {first, second, third, fourth}) {
    EXPECT_EQ(Issue(), expected);
  }
  EXPECT_EQ(Issue(), nullptr);
  EXPECT_TRUE(schedule_.empty());
}

TEST_F(ClassScheduleTest, AskedAgainItAnswersTheSame) {
  Add(IoClass::kPrefetch);
  Add(IoClass::kWriteBack);
  for (int i = 0; i < 50; ++i) {
    Transfer* const next = schedule_.Next(kPiece);
    for (int j = 0; j < 5; ++j) EXPECT_EQ(schedule_.Next(kPiece), next);
    EXPECT_EQ(Issue(), next);
  }
}

TEST_F(ClassScheduleTest, WhatIsRemovedIsNotAskedFor) {
  Transfer* const removed = Add(IoClass::kDemand);
  Transfer* const left = Add(IoClass::kWriteBack);
  EXPECT_TRUE(schedule_.Remove(*removed));
  EXPECT_FALSE(schedule_.Remove(*removed));
  EXPECT_EQ(Issue(), left);
}

TEST_F(ClassScheduleTest, KnowsWhoeverWouldMoveBytesTheOtherWay) {
  Add(IoClass::kDemand);
  EXPECT_FALSE(schedule_.HasFirstOfOther(IoDirection::kRead));
  EXPECT_TRUE(schedule_.HasFirstOfOther(IoDirection::kWrite));
  Transfer* const write = Add(IoClass::kWriteBack, kPiece,
                              absl::InfiniteDuration(), IoDirection::kWrite);
  EXPECT_TRUE(schedule_.HasFirstOfOther(IoDirection::kRead));
  schedule_.Remove(*write);
  EXPECT_FALSE(schedule_.HasFirstOfOther(IoDirection::kRead));
}

TEST(Transfer, IsCutIntoEqualPiecesOfWholeBlocks) {
  Transfer transfer;
  transfer.request.size_bytes = 10 * kBlockBytes;
  std::vector<int64_t> pieces;
  while (!transfer.all_issued()) {
    pieces.push_back(transfer.NextPieceBytes(4 * kBlockBytes));
    transfer.issued_bytes += pieces.back();
  }
  EXPECT_EQ(pieces, (std::vector<int64_t>{4 * kBlockBytes, 4 * kBlockBytes,
                                          2 * kBlockBytes}));
}

TEST(Transfer, ALastBlockThatIsNotWholeIsPartOfTheLastPiece) {
  for (const auto& [size, expected] :
       std::vector<std::pair<int64_t, std::vector<int64_t>>>{
           {1, {1}},
           {kBlockBytes - 1, {kBlockBytes - 1}},
           {4 * kBlockBytes - 1, {4 * kBlockBytes - 1}},
           {4 * kBlockBytes + 1, {3 * kBlockBytes, kBlockBytes + 1}},
           {8 * kBlockBytes - 1, {4 * kBlockBytes, 4 * kBlockBytes - 1}}}) {
    Transfer transfer;
    transfer.request.size_bytes = size;
    std::vector<int64_t> pieces;
    while (!transfer.all_issued()) {
      pieces.push_back(transfer.NextPieceBytes(4 * kBlockBytes));
      transfer.issued_bytes += pieces.back();
    }
    EXPECT_EQ(pieces, expected) << size;
  }
}

TEST(Transfer, ALimitThatChangesCutsWhatIsLeftAnew) {
  Transfer transfer;
  transfer.request.size_bytes = 12 * kBlockBytes;
  EXPECT_EQ(transfer.NextPieceBytes(6 * kBlockBytes), 6 * kBlockBytes);
  transfer.issued_bytes = 6 * kBlockBytes;
  EXPECT_EQ(transfer.NextPieceBytes(2 * kBlockBytes), 2 * kBlockBytes);
}

}  // namespace
}  // namespace terrace
