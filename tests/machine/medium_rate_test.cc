#include "machine/profile/medium_rate.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/pool_executor.h"
#include "terrace/machine.h"
#include "tests/support/medium/fault_medium.h"
#include "tests/support/medium/vector_medium.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kMediumMiB = 1 << 20;
constexpr absl::Duration kTime = absl::Milliseconds(1);

std::unique_ptr<Executor> Threads(int count) {
  auto executor = MakePoolExecutor(count, {});
  return executor.ok() ? *std::move(executor) : nullptr;
}

// With bad blocks.
class BadMedium final : public Medium {
 public:
  BadMedium(Medium& medium, std::vector<Extent> bad)
      : medium_(medium), bad_(std::move(bad)) {}
  const std::string& name() const override { return medium_.name(); }
  int64_t size_bytes() const override { return medium_.size_bytes(); }
  std::vector<Extent> bad_ranges() const override { return bad_; }
  absl::Status Read(int64_t offset, absl::Span<std::byte> to) override {
    return medium_.Read(offset, to);
  }
  absl::Status Write(int64_t offset,
                     absl::Span<const std::byte> from) override {
    return medium_.Write(offset, from);
  }

 private:
  Medium& medium_;
  const std::vector<Extent> bad_;
};

bool IsZero(const std::vector<std::byte>& bytes, int64_t piece) {
  const auto begin = bytes.begin() + piece * kMediumMiB;
  return std::all_of(begin, begin + kMediumMiB,
                     [](std::byte byte) { return byte == std::byte{0}; });
}

TEST(MediumRateTest, AllOfItIsWrittenOnceAndBothDirectionsAreMeasured) {
  const auto executor = Threads(3);
  VectorMedium bytes("far", 31 * kMediumMiB + 4096);
  FaultMedium medium(bytes);
  const auto rates = MeasureMedium(medium, *executor, kTime);
  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_GT(rates->read_bytes_per_second, 0);
  EXPECT_GT(rates->write_bytes_per_second, 0);
  for (int64_t i = 0; i < 31; ++i) EXPECT_FALSE(IsZero(bytes.bytes(), i)) << i;
  int64_t reads = 0;
  for (const MediumCall& call : medium.calls()) {
    EXPECT_EQ(call.size_bytes, kMediumMiB);
    EXPECT_EQ(call.offset % kMediumMiB, 0);
    reads += call.direction == IoDirection::kRead;
  }
  // Three times at least, four pieces of each thread.
  EXPECT_GE(reads, 3 * 4 * 3);
}

TEST(MediumRateTest, NoTwoThreadsAreInOnePiece) {
  const auto executor = Threads(4);
  VectorMedium bytes("far", 5 * kMediumMiB);
  FaultMedium medium(bytes);
  Mutex mutex;
  std::set<int64_t> under_way;
  bool overlaps = false;
  medium.OnCall([&](const MediumCall& call) {
    {
      MutexLock lock(mutex);
      overlaps |= !under_way.insert(call.offset).second;
    }
    absl::SleepFor(absl::Microseconds(200));
    MutexLock lock(mutex);
    under_way.erase(call.offset);
  });
  ASSERT_TRUE(MeasureMedium(medium, *executor, kTime).ok());
  EXPECT_FALSE(overlaps);
}

TEST(MediumRateTest, ASlowMediumIsNoFasterThanItsPieces) {
  const auto executor = Threads(1);
  VectorMedium bytes("far", 2 * kMediumMiB);
  FaultMedium medium(bytes);
  medium.OnCall([](const MediumCall& call) {
    const bool reads = call.direction == IoDirection::kRead;
    absl::SleepFor(absl::Milliseconds(reads ? 2 : 4));
  });
  const auto rates = MeasureMedium(medium, *executor, kTime);
  ASSERT_TRUE(rates.ok()) << rates.status();
  // 1 MiB in 2 ms and in 4 ms; a busy machine only makes them less.
  EXPECT_LE(rates->read_bytes_per_second, 500.0 * kMediumMiB);
  EXPECT_LE(rates->write_bytes_per_second, 250.0 * kMediumMiB);
}

TEST(MediumRateTest, BadBlocksAreLeftAlone) {
  const auto executor = Threads(2);
  VectorMedium bytes("pmem", 4 * kMediumMiB);
  BadMedium medium(bytes, {{.offset = kMediumMiB + 4096, .size_bytes = 4096},
                           {.offset = 4 * kMediumMiB - 1, .size_bytes = 1}});
  ASSERT_TRUE(MeasureMedium(medium, *executor, kTime).ok());
  EXPECT_FALSE(IsZero(bytes.bytes(), 0));
  EXPECT_TRUE(IsZero(bytes.bytes(), 1));
  EXPECT_FALSE(IsZero(bytes.bytes(), 2));
  EXPECT_TRUE(IsZero(bytes.bytes(), 3));
}

TEST(MediumRateTest, TooFewBytesOrNoTimeAreRefused) {
  const auto executor = Threads(1);
  VectorMedium small("small", kMediumMiB - 1);
  const absl::Status status = MeasureMedium(small, *executor, kTime).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              StartsWith("small: 1048575 bytes"));
  VectorMedium bytes("far", kMediumMiB);
  EXPECT_TRUE(MeasureMedium(bytes, *executor, kTime).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(
      MeasureMedium(bytes, *executor, absl::ZeroDuration()).status()));
}

TEST(MediumRateTest, EachPieceThatFailsIsTheError) {
  const auto executor = Threads(1);
  VectorMedium bytes("pmem", 4 * kMediumMiB);
  // Four pieces are written at first, then 12 measured; then 12 are read.
  for (const int64_t calls : {0, 3, 4, 15}) {
    FaultMedium medium(bytes);
    medium.Fail(calls, absl::DataLossError("a bad block"));
    const absl::Status status =
        MeasureMedium(medium, *executor, kTime).status();
    EXPECT_EQ(status, absl::DataLossError("a bad block")) << calls;
  }
  FaultMedium medium(bytes);
  bool has_read = false;
  medium.OnCall([&](const MediumCall& call) {
    if (call.direction != IoDirection::kRead || has_read) return;
    has_read = true;
    medium.Fail(0, absl::DataLossError("lost"));
  });
  EXPECT_EQ(MeasureMedium(medium, *executor, kTime).status(),
            absl::DataLossError("lost"));
}

TEST(MeasureTierTest, AFileThatPlaysPersistentMemoryIsMeasuredAndGoes) {
  const TemporaryDirectory directory;
  const TierSpec tier = {.kind = TierKind::kPmem, .place = directory.path()};
  const auto profile = MeasureMachine({.tiers = {tier},
                                       .file_bytes = 32 << 20,
                                       .per_rate = kTime,
                                       .unsafe_media = true});
  if (absl::IsUnimplemented(profile.status())) {
    GTEST_SKIP() << profile.status();
  }
  ASSERT_TRUE(profile.ok()) << profile.status();
  ASSERT_EQ(profile->tiers.size(), 1u);
  EXPECT_EQ(profile->tiers[0].tier, "pmem:" + directory.path());
  EXPECT_GT(profile->tiers[0].read_bytes_per_second, 0);
  EXPECT_GT(profile->tiers[0].write_bytes_per_second, 0);
  EXPECT_TRUE(directory.empty());
  MachineReport report = ProbeMachine({}, {tier});
  EXPECT_THAT(FindStale(*profile, report), testing::IsEmpty());
}

TEST(MeasureTierTest, WhatCannotBeMeasuredIsRefusedByItsName) {
  const TemporaryDirectory directory;
  const TierSpec pmem = {.kind = TierKind::kPmem, .place = directory.path()};
  const auto refused = [](std::vector<TierSpec> tiers) {
    return MeasureMachine({.tiers = std::move(tiers), .per_rate = kTime})
        .status();
  };
  const std::pair<std::vector<TierSpec>, const char*> wrong[] = {
      {{{.kind = TierKind::kDram, .budget_bytes = kMediumMiB}}, "tier 'dram'"},
      {{{.kind = TierKind::kDisk, .place = "/"}}, "named as a path"},
      {{{.kind = TierKind::kFar, .place = "elsewhere"}}, "memory node"},
      {{pmem, pmem}, "named twice"}};
  for (const auto& [tiers, what] : wrong) {
    const absl::Status status = refused(tiers);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }
  const absl::Status far =
      refused({{.kind = TierKind::kFar, .place = "node4000"}});
  EXPECT_TRUE(absl::IsUnavailable(far)) << far;
  EXPECT_THAT(std::string(far.message()), StartsWith("tier 'far:node4000': "));
  const absl::Status page = refused({pmem});
  EXPECT_FALSE(page.ok());  // no persistent memory, or no libpmem2
  EXPECT_THAT(std::string(page.message()), StartsWith("tier 'pmem:"));
  EXPECT_TRUE(directory.empty());
}

}  // namespace
}  // namespace terrace
