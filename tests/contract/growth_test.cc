// What grows: homes on disks that hang or are full (runtime.h's Register and
// Close), and memory (GrowMemory).
#include <atomic>
#include <thread>

#include "base/io_fault.h"
#include "terrace/memory_runtime.h"
#include "tests/contract/contract_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class GrowthContract : public ContractTest {
 protected:
  // More than what a file has beyond its need.
  static constexpr int64_t kLarge = 2 << 20;
  // Where all disks that are asked hang.
  static constexpr absl::Duration kTimeout = absl::Milliseconds(100);

  void MakePaths(int paths, absl::Duration io_timeout = kTimeout) {
    TestRuntimeOptions options;
    options.paths = paths;
    options.io_timeout = io_timeout;
    Make(4, options);
  }
  absl::StatusOr<TensorId> Register(const std::string& name,
                                    int64_t size_bytes = kLarge) {
    TensorSpec spec;
    spec.name = name;
    spec.size_bytes = size_bytes;
    return runtime().Register(spec);
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, GrowthContract, testing::ValuesIn(kDiskWorlds),
                         WorldParamName);

TEST_P(GrowthContract, ADiskThatHangsIsNamedInTime) {
  MakePaths(1);
  world().disk_faults(0).Hang();
  const absl::Time before = world().Now();
  const absl::Status status = Register("a").status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr(stats().paths()[0].disk.file));
  EXPECT_THAT(Message(status), HasSubstr("bytes"));
  EXPECT_THAT(Message(status), HasSubstr("ms"));
  EXPECT_EQ(IoFaultOf(status).path, stats().paths()[0].disk.file);
  EXPECT_GE(world().Now() - before, kTimeout);
  EXPECT_TRUE(stats().paths()[0].degraded);
  EXPECT_EQ(stats().first_error, status);
  // Not asked again while it hangs: refused at once.
  runtime().Acquire(TensorId{0}, Access::kRead, Soon()).IgnoreError();
  auto queue = world().OpenQueue(kPage, 1);
  EXPECT_TRUE(stats().paths()[0].degraded);
  const absl::Status late = Register("b").status();
  EXPECT_TRUE(absl::IsUnavailable(late)) << late;
  EXPECT_EQ(IoFaultOf(late).path, stats().paths()[0].disk.file);

  // Its answer came late: its space is there, and the name is free.
  world().disk_faults(0).Clear();
  runtime().Prefetch({});
  EXPECT_TRUE(world().WaitUntil([&] {
    return queue->BeginStep(1).ok() && queue->AbortStep().ok() &&
           !stats().paths()[0].degraded;
  }));
  const absl::StatusOr<TensorId> again = Register("a");
  EXPECT_TRUE(again.ok()) << again.status();
}

// A process that was stopped looks before the thread that asked the disk.
TEST_P(GrowthContract, ADiskIsNotLateForAGapInWhichNobodyLooked) {
  if (GetParam() != TestWorld::kVirtual) GTEST_SKIP() << "needs virtual time";
  MakePaths(1);
  world().disk_faults(0).Hang();
  VirtualClock& clock = world().virtual_clock();
  const absl::Time gap = clock.Now() + kTimeout / 2;
  clock.AddEvent(gap, [&] { clock.JumpTo(gap + 100 * kTimeout); });
  clock.AddEvent(gap + 100.5 * kTimeout,
                 [&] { world().disk_faults(0).Clear(); });
  const absl::Status status = Register("a").status();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_P(GrowthContract, TheNextPathTakesOver) {
  MakePaths(2, HealthyTimeout());
  world().disk_faults(0).Hang();
  const absl::StatusOr<TensorId> a = Register("a");
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(stats().paths()[0].used_bytes, 0);
  EXPECT_GT(stats().paths()[1].used_bytes, kLarge);
  EXPECT_TRUE(stats().paths()[0].degraded);
  EXPECT_FALSE(stats().paths()[1].degraded);
}

TEST_P(GrowthContract, AFullDiskIsNamedAndTheNextOneTried) {
  MakePaths(2, absl::Seconds(60));
  world().disk_faults(0).Fill();
  const absl::StatusOr<TensorId> a = Register("a");
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_GT(stats().paths()[1].used_bytes, kLarge);
  EXPECT_FALSE(stats().paths()[0].degraded);  // it reads and writes
  world().disk_faults(1).Fill();
  const absl::Status status = Register("b").status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  for (const TierStats& path : stats().paths()) {
    EXPECT_THAT(Message(status), HasSubstr(path.disk.file));
  }
  EXPECT_THAT(Message(status), HasSubstr("ENOSPC"));
  EXPECT_THAT(Message(status), HasSubstr("bytes"));
  world().disk_faults(0).Clear();
  EXPECT_TRUE(Register("b").ok());
}

TEST_P(GrowthContract, TransfersGoOnMeanwhile) {
  if (GetParam() == TestWorld::kVirtual) {
    GTEST_SKIP() << "one thread cannot wait twice";
  }
  MakePaths(1, absl::Seconds(60));
  const std::vector<TensorId> tensors = world().RegisterMany(6, kPage);
  auto queue = world().OpenQueue(kPage, 2);
  world().disk_faults(0).Hang();
  const int growths = world().disk_faults(0).growths();
  std::atomic<bool> answered = false;
  std::thread registers([&] {
    EXPECT_TRUE(Register("large").ok());
    answered = true;
  });
  EXPECT_TRUE(world().WaitUntil(
      [&] { return world().disk_faults(0).growths() > growths; }));
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 6; ++i) world().Fill(*queue, tensors[i], round + i);
    for (int i = 0; i < 6; ++i) {
      EXPECT_TRUE(world().Holds(*queue, tensors[i], round + i));
    }
  }
  EXPECT_GT(stats().bytes_written(), 0);
  EXPECT_FALSE(answered);
  world().disk_faults(0).Clear();
  registers.join();
}

TEST_P(GrowthContract, ManyThatWaitForOneFileAllGetTheirHomes) {
  if (GetParam() == TestWorld::kVirtual) {
    GTEST_SKIP() << "one thread cannot wait twice";
  }
  MakePaths(1, absl::Seconds(60));
  world().disk_faults(0).Hang();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] {
      TensorId last;
      for (int j = 0; j < 3; ++j) {
        const absl::StatusOr<TensorId> id =
            Register(std::to_string(3 * i + j), 1 << 18);
        EXPECT_TRUE(id.ok()) << id.status();
        EXPECT_GT(*id, last);  // in the caller's order
        last = *id;
      }
    });
  }
  EXPECT_TRUE(
      world().WaitUntil([&] { return world().disk_faults(0).growths() > 0; }));
  world().disk_faults(0).Clear();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(stats().paths()[0].used_bytes, 12 * ResidentBytes(1 << 18));
}

TEST_P(GrowthContract, CloseKeepsItsDeadlineOnADiskThatHangs) {
  MakePaths(2, absl::Seconds(60));
  world().Register("on the other path", kPage);
  world().disk_faults(0).Hang();
  const std::string file = stats().paths()[0].disk.file;
  const std::string other = stats().paths()[1].disk.file;
  const absl::Time deadline = world().Now() + HealthyTimeout();
  const absl::Status status = runtime().Close(deadline);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr(file));
  EXPECT_THAT(Message(status), testing::Not(HasSubstr(other)));
  EXPECT_GE(world().Now(), deadline);
  EXPECT_LE(world().Now(), deadline + absl::Minutes(1));  // not for ever
  EXPECT_EQ(stats().host.leaked_bytes, 0);  // no transfer needs the arena
}

TEST_P(GrowthContract, CloseKeepsItsDeadlineWhileAFileGrows) {
  MakePaths(1);
  world().disk_faults(0).Hang();
  EXPECT_TRUE(absl::IsDeadlineExceeded(Register("a").status()));
  const absl::Status status =
      runtime().Close(world().Now() + absl::Milliseconds(200));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(absl::IsCancelled(Register("b").status()));
}

TEST_P(GrowthContract, CloseCancelsARegisterThatWaits) {
  if (GetParam() == TestWorld::kVirtual) {
    GTEST_SKIP() << "one thread cannot wait twice";
  }
  MakePaths(1, absl::Seconds(60));
  world().disk_faults(0).Hang();
  std::thread registers(
      [&] { EXPECT_TRUE(absl::IsCancelled(Register("a").status())); });
  EXPECT_TRUE(
      world().WaitUntil([&] { return world().disk_faults(0).growths() > 0; }));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      runtime().Close(world().Now() + absl::Milliseconds(50))));
  registers.join();
}

class MemoryGrowthContract : public ContractTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, MemoryGrowthContract,
                         testing::ValuesIn(kAllWorlds), WorldParamName);

TEST_P(MemoryGrowthContract, ACustomerThatJoinsHasRoomBesideThoseThatAreThere) {
  Make(3, {.growth_bytes = 4 * kPlace});
  const std::vector<TensorId> tensors = world().RegisterMany(9, kPage);
  auto first = runtime().OpenQueue(kPage, 3, Soon());
  ASSERT_TRUE(first.ok()) << first.status();
  auto pinned = world().Take(**first, tensors[0], Access::kOverwrite);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  WritePattern(pinned->data(), 7);

  const absl::Status refused =
      runtime().OpenQueue(kPage, 4, Shortly()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  ASSERT_TRUE(runtime().GrowMemory(4 * kPlace - 1).ok());
  EXPECT_EQ(stats().host.budget_bytes, 7 * kPlace);
  EXPECT_EQ(stats().host.reserved_bytes, 7 * kPlace);
  EXPECT_EQ(stats().tiers.front().kind == TierKind::kHbm
                ? stats().tiers.at(1).budget_bytes
                : stats().tiers.front().budget_bytes,
            7 * kPlace);
  auto second = runtime().OpenQueue(kPage, 4, Soon());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(HasPattern(pinned->data(), 7));
  pinned->Release();
  // Through the new memory, down and back.
  for (size_t i = 1; i < tensors.size(); ++i) {
    auto pin = world().Take(**second, tensors[i], Access::kOverwrite);
    ASSERT_TRUE(pin.ok()) << pin.status();
    WritePattern(pin->data(), static_cast<uint8_t>(i));
  }
  for (size_t i = 1; i < tensors.size(); ++i) {
    auto pin = world().Take(**second, tensors[i], Access::kRead);
    ASSERT_TRUE(pin.ok()) << pin.status();
    EXPECT_TRUE(HasPattern(pin->data(), static_cast<uint8_t>(i)));
  }
  EXPECT_GT(stats().demand_reads, 0);
}

TEST_P(MemoryGrowthContract, BeyondWhatWasReservedNothingChanges) {
  Make(3, {.growth_bytes = kPlace});
  const absl::Status beyond = runtime().GrowMemory(kPlace + 1);
  EXPECT_EQ(beyond.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(beyond), HasSubstr("8192 bytes of addresses"));
  EXPECT_EQ(runtime().GrowMemory(0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stats().host.budget_bytes, 3 * kPlace);
  EXPECT_TRUE(runtime().GrowMemory(kPlace).ok());
  EXPECT_EQ(stats().host.budget_bytes, 4 * kPlace);
}

TEST_P(MemoryGrowthContract, AClosedRuntimeDoesNotGrow) {
  Make(3, {.growth_bytes = kPlace});
  ASSERT_TRUE(runtime().Close(Soon()).ok());
  EXPECT_EQ(runtime().GrowMemory(kPlace).code(), absl::StatusCode::kCancelled);
}

TEST(MemoryGrowthTest, AnotherKindOfRuntimeSaysThatItCannot) {
  auto threads = ThreadPool::Create(1);
  ASSERT_TRUE(threads.ok());
  const auto runtime = MemoryRuntime::Create(*threads);
  const absl::Status refused = runtime->GrowMemory(5);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("by 5 bytes"));
}

}  // namespace
}  // namespace terrace
