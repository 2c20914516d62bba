#include "runtime/motion/staging_room.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/fake_reserver.h"

namespace terrace {
namespace {

using Way = StagingRoom::Way;

class StagingRoomTest : public testing::Test {
 protected:
  static constexpr int64_t kStride = 8192;

  StagingRoom::Lease Open(int slots) {
    offset_ += 1 << 20;
    return staging_.Open(memory_.Give(offset_, 2 * slots * kStride), kStride,
                         slots);
  }

  int64_t offset_ = 0;
  FakeReserver memory_{kDramTier};
  StagingRoom staging_;
};

TEST_F(StagingRoomTest, EachDirectionHasSlotsOfItsOwn) {
  const StagingRoom::Lease lease = Open(1);
  const Reservation up = staging_.Take(Way::kUp, 4096);
  EXPECT_EQ(up.extent(), (Extent{1 << 20, 4096}));
  EXPECT_EQ(up.tier(), kDramTier);
  EXPECT_TRUE(staging_.Take(Way::kUp, 4096).empty());
  const Reservation down = staging_.Take(Way::kDown, kStride);
  EXPECT_EQ(down.extent(), (Extent{(1 << 20) + kStride, kStride}));
  EXPECT_TRUE(staging_.Take(Way::kDown, 4096).empty());
}

TEST_F(StagingRoomTest, ASlotIsFreeOnceItsTransferHasEnded) {
  const StagingRoom::Lease lease = Open(1);
  Reservation slot = staging_.Take(Way::kUp, 4096);
  slot.Reset();
  EXPECT_FALSE(staging_.Take(Way::kUp, 4096).empty());
}

TEST_F(StagingRoomTest, ATransferTakesAnySlotThatItFits) {
  const StagingRoom::Lease first = Open(1);
  const StagingRoom::Lease second = Open(2);
  std::vector<Reservation> taken;
  for (int i = 0; i < 3; ++i) {
    taken.push_back(staging_.Take(Way::kDown, kStride));
    EXPECT_FALSE(taken.back().empty());
  }
  EXPECT_TRUE(staging_.Take(Way::kDown, kStride).empty());
  EXPECT_TRUE(staging_.Hope(Way::kDown, kStride).ok());  // those come back
  EXPECT_TRUE(staging_.Take(Way::kUp, kStride + 1).empty());
  EXPECT_TRUE(absl::IsCancelled(staging_.Hope(Way::kUp, kStride + 1)));
}

TEST_F(StagingRoomTest, WhereAllAreLateThereIsNoHopeButTheFirstOnesStatus) {
  const StagingRoom::Lease lease = Open(2);
  Reservation first = staging_.Take(Way::kUp, 4096);
  Reservation second = staging_.Take(Way::kUp, 4096);
  staging_.SetLate(first, absl::DeadlineExceededError("the first"));
  EXPECT_TRUE(staging_.Hope(Way::kUp, 4096).ok());
  staging_.SetLate(second, absl::DeadlineExceededError("the second"));
  EXPECT_EQ(staging_.Hope(Way::kUp, 4096),
            absl::DeadlineExceededError("the first"));
  EXPECT_TRUE(staging_.Hope(Way::kDown, 4096).ok());
  second.Reset();  // the device lets go
  EXPECT_TRUE(staging_.Hope(Way::kUp, 4096).ok());
  EXPECT_FALSE(staging_.Take(Way::kUp, 4096).empty());
}

TEST_F(StagingRoomTest, ARangeThatIsClosedGoesWhenTheLastSlotIsFree) {
  StagingRoom::Lease lease = Open(1);
  Reservation slot = staging_.Take(Way::kUp, 4096);
  EXPECT_EQ(staging_.size_bytes(), 2 * kStride);
  EXPECT_FALSE(staging_.closing());
  { const StagingRoom::Lease ends = std::move(lease); }
  EXPECT_TRUE(lease.empty());
  EXPECT_TRUE(staging_.closing());
  EXPECT_EQ(staging_.open_bytes(), 0);
  EXPECT_TRUE(staging_.Take(Way::kDown, 4096).empty());
  EXPECT_TRUE(absl::IsCancelled(staging_.Hope(Way::kUp, 4096)));
  staging_.Sweep();
  EXPECT_EQ(staging_.size_bytes(), 2 * kStride);
  EXPECT_TRUE(memory_.freed().empty());
  slot.Reset();
  staging_.Sweep();
  EXPECT_EQ(staging_.size_bytes(), 0);
  EXPECT_EQ(memory_.freed().size(), 1u);
}

}  // namespace
}  // namespace terrace
