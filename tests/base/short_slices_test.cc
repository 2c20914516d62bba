#include "base/threads/short_slices.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <thread>

namespace terrace {
namespace {

// As the kernel tells it, for this thread.
struct Scheduling {
  uint32_t policy = 0;
  int32_t nice = 0;
  uint64_t runtime_ns = 0;
};

Scheduling OfThisThread() {
  unsigned char bytes[48] = {};
  EXPECT_EQ(syscall(SYS_sched_getattr, 0, bytes, sizeof(bytes), 0), 0);
  Scheduling told;
  std::memcpy(&told.policy, bytes + 4, sizeof(told.policy));
  std::memcpy(&told.nice, bytes + 16, sizeof(told.nice));
  std::memcpy(&told.runtime_ns, bytes + 24, sizeof(told.runtime_ns));
  return told;
}

TEST(ShortSlicesTest, AreTheShortestAndLeaveTheRestAsItWas) {
  const Scheduling before = OfThisThread();
  if (before.policy != SCHED_OTHER) GTEST_SKIP() << "run with another policy";
  if (before.runtime_ns == 0) GTEST_SKIP() << "this kernel tells no slices";
  constexpr int kLowest = 19;
  Scheduling after;
  std::thread([&] {
    ASSERT_EQ(setpriority(PRIO_PROCESS, 0, kLowest), 0);
    TakeShortSlices();
    after = OfThisThread();
  }).join();
  EXPECT_EQ(after.policy, static_cast<uint32_t>(SCHED_OTHER));
  EXPECT_EQ(after.nice, kLowest);
  EXPECT_EQ(after.runtime_ns, 100'000u);
  EXPECT_EQ(OfThisThread().runtime_ns, before.runtime_ns);  // not of others
}

TEST(ShortSlicesTest, APolicyThatWasChosenStays) {
  Scheduling after;
  std::thread([&] {
    sched_param none = {};
    ASSERT_EQ(sched_setscheduler(0, SCHED_BATCH, &none), 0);
    const uint64_t slice = OfThisThread().runtime_ns;
    TakeShortSlices();
    after = OfThisThread();
    EXPECT_EQ(after.runtime_ns, slice);
  }).join();
  EXPECT_EQ(after.policy, static_cast<uint32_t>(SCHED_BATCH));
}

}  // namespace
}  // namespace terrace
