#include "base/threads/lock_order.h"

#include "gtest/gtest.h"

namespace terrace {
namespace {

TEST(LockOrder, LaterRanksAreTakenUnderEarlierOnes) {
  HeldLocks held;
  for (int round = 0; round < 3; ++round) {
    held.Take(LockRank::kUpdateNet);
    held.Take(LockRank::kStorageLives);
    held.Take(LockRank::kStorageRegistry);
    held.Give(LockRank::kStorageLives);  // in any order
    held.Take(LockRank::kWindowQueue);
    held.Give(LockRank::kWindowQueue);
    held.Give(LockRank::kStorageRegistry);
    held.Give(LockRank::kUpdateNet);
  }
}

TEST(LockOrderDeathTest, AnEarlierOneEndsTheProcess) {
  HeldLocks held;
  held.Take(LockRank::kOperationNet);
  EXPECT_DEATH(held.Take(LockRank::kStorageLives), "ranks_");
  EXPECT_DEATH(held.Take(LockRank::kOperationNet), "ranks_") << "nor the same";
}

TEST(LockOrderDeathTest, IsCheckedAtEachLockOfABuildWithASanitiser) {
#ifdef TERRACE_CHECKED_LOCKS
  OrderedMutex lives(LockRank::kStorageLives);
  OrderedMutex net(LockRank::kOperationNet);
  {
    const OrderedLock first(lives);
    const OrderedLock second(net);
  }
  const OrderedLock first(net);
  EXPECT_DEATH(lives.Lock(), "ranks_");
#else
  GTEST_SKIP() << "this build does not check it";
#endif
}

}  // namespace
}  // namespace terrace
