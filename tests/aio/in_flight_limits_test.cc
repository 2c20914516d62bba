// Which of a path's limits holds: what it goes on from, by itself, and what it
// is on a device in virtual time of 1 GiB/s each way.
#include "aio/queue/in_flight_limits.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "gtest/gtest.h"
#include "tests/aio/model_path.h"

namespace terrace {
namespace {

constexpr int64_t kLimitsMiB = 1 << 20;
constexpr double kLimitsGiB = 1 << 30;
constexpr int64_t kFirst = 8 * kLimitsMiB;
// Of 2 GiB/s 3.4 MiB pass in 1.65 ms. What is waited for has four fifths of the
// limit, so that writes have a quarter of their rate: of 1.25 GiB/s 4.2 MiB
// pass in 3.3 ms.
constexpr int64_t kMostForLatency = 15 * kLimitsMiB / 4;
constexpr int64_t kLeastForThroughput = 4 * kLimitsMiB;

// Answers, of a MiB each, come as the test says.
class LimitsTest : public testing::Test {
 protected:
  void Answer(int count, absl::Duration each) {
    for (int i = 0; i < count; ++i) {
      now_ += each;
      limits_.OnAnswer(now_, kLimitsMiB, /*is_read=*/true, /*has_more=*/true);
    }
  }
  int64_t bytes() const { return limits_.holding().bytes(); }

  InFlightLimits limits_{IoQueueOptions()};
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(LimitsTest, ATrialEndsWithItsLimit) {
  constexpr absl::Duration kEach = absl::Milliseconds(1);
  Answer(12 * 8 + 8 + 30, kEach);
  EXPECT_EQ(bytes(), kFirst / 2);  // on trial for 30 of 48 MiB: 8 take 8 ms
  limits_.OnClass(now_, IoClass::kForeseen);
  EXPECT_EQ(bytes(), kFirst);
  now_ += absl::Hours(1);
  limits_.OnClass(now_, IoClass::kDemand);
  EXPECT_EQ(bytes(), kFirst);
  // Nothing is judged by an epoch that has that hour in it.
  Answer(12 * 8, kEach);
  EXPECT_EQ(bytes(), kFirst);
  Answer(12, kEach);
  EXPECT_EQ(bytes(), kFirst / 2);
}

TEST_F(LimitsTest, ThatForThroughputIsNoSmallerThanTheOther) {
  Answer(1000, absl::Milliseconds(4));
  EXPECT_LT(bytes(), kLimitsMiB);  // 1.65 ms of a slow device
  limits_.OnClass(now_, IoClass::kForeseen);
  EXPECT_EQ(bytes(), kFirst);
}

TEST_F(LimitsTest, ThatForLatencyIsNoLargerThanTheOther) {
  for (int i = 0; i < 100; ++i) {
    limits_.OnClass(now_, IoClass::kForeseen);
    Answer(100, absl::Milliseconds(4));
  }
  const int64_t for_throughput = bytes();
  EXPECT_LT(for_throughput, kFirst);
  limits_.OnClass(now_, IoClass::kDemand);  // it has not moved a byte yet
  EXPECT_EQ(bytes(), for_throughput);
}

TEST_F(LimitsTest, ADemandEndsItForASecond) {
  limits_.OnClass(now_, IoClass::kForeseen);
  const InFlightLimit* const for_throughput = &limits_.holding();
  limits_.OnClass(now_, IoClass::kPrefetch);
  limits_.OnClass(now_, IoClass::kWriteBack);
  EXPECT_EQ(&limits_.holding(), for_throughput);
  limits_.OnClass(now_, IoClass::kDemand);
  EXPECT_NE(&limits_.holding(), for_throughput);
  now_ += absl::Seconds(1);
  limits_.OnClass(now_, IoClass::kForeseen);
  EXPECT_NE(&limits_.holding(), for_throughput);
  Answer(1, absl::Microseconds(1));
  EXPECT_EQ(&limits_.holding(), for_throughput);
}

TEST_F(LimitsTest, WithoutForeseenReadsForASecondItEnds) {
  const InFlightLimit* const for_latency = &limits_.holding();
  limits_.OnClass(now_, IoClass::kWriteBack);
  EXPECT_EQ(&limits_.holding(), for_latency);
  limits_.OnClass(now_, IoClass::kForeseen);
  Answer(1, absl::Seconds(1));
  EXPECT_NE(&limits_.holding(), for_latency);
  Answer(1, absl::Microseconds(1));
  EXPECT_EQ(&limits_.holding(), for_latency);
}

class LimitsOnADeviceTest : public ModelPathTest {
 protected:
  LimitsOnADeviceTest() : ModelPathTest(kChunk) {
    Make({kLimitsGiB, kLimitsGiB});
  }

  void Enqueue(IoDirection direction, IoClass io_class) {
    io_->Enqueue(path_,
                 {direction, io_class, buffer_.data(), 0, kChunk, ++tag_});
  }

  // So many reads of the class, six pending at a time, beside writes of which
  // eight always are; the limit when the last one was read. Reads of a class
  // that is `promoted_to` another have that before they move.
  int64_t Stream(int reads, IoClass io_class, IoClass promoted_to) {
    int writes = 0;
    int64_t last = 0;
    std::vector<uint64_t> pending;
    while (reads > 0 || !pending.empty()) {
      for (; writes < 8; ++writes) {
        Enqueue(IoDirection::kWrite, IoClass::kWriteBack);
      }
      for (; reads > 0 && pending.size() < 6; --reads) {
        Enqueue(IoDirection::kRead, io_class);
        pending.push_back(tag_);
        io_->Promote(path_, tag_, promoted_to);
      }
      for (const Completion& completion : Turn()) {
        if (std::erase(pending, completion.tag) == 0) --writes;
      }
      last = limit();
    }
    while (io_->pending() > 0) Turn();
    return last;
  }
  int64_t Stream(int reads, IoClass io_class) {
    return Stream(reads, io_class, io_class);
  }

  static constexpr int64_t kChunk = 2 * kLimitsMiB;
};

TEST_F(LimitsOnADeviceTest, ForeseenReadsHaveTwiceTheTime) {
  const int64_t limit = Stream(500, IoClass::kForeseen);
  EXPECT_GE(limit, kLeastForThroughput);
  EXPECT_LE(limit, 6 * kLimitsMiB);
}

TEST_F(LimitsOnADeviceTest, DemandsHaveNot) {
  EXPECT_LE(Stream(500, IoClass::kDemand), kMostForLatency);
}

TEST_F(LimitsOnADeviceTest, NorHasWhatNobodyWaitsFor) {
  EXPECT_LE(Stream(500, IoClass::kPrefetch), kMostForLatency);
}

TEST_F(LimitsOnADeviceTest, WhatBecomesADemandIsOne) {
  EXPECT_LE(Stream(500, IoClass::kForeseen, IoClass::kDemand), kMostForLatency);
}

TEST_F(LimitsOnADeviceTest, WhatIsWaitedForAfterAllWasForeseen) {
  EXPECT_GE(Stream(500, IoClass::kPrefetch, IoClass::kForeseen),
            kLeastForThroughput);
}

// A device whose latency a small limit does not cover.
TEST_F(LimitsOnADeviceTest, TheTimeIsUsedWhereItBringsThroughput) {
  const DeviceModel device{kLimitsGiB, kLimitsGiB, absl::Milliseconds(1)};
  IoQueueOptions options;
  options.in_flight_bytes = 2 * kLimitsMiB;
  Make(device, options);
  const absl::Time start = clock_.Now();
  Stream(1000, IoClass::kForeseen);
  const absl::Duration foreseen = clock_.Now() - start;
  options.foreseen_latency = options.in_flight_latency;
  Make(device, options);
  const absl::Time again = clock_.Now();
  Stream(1000, IoClass::kForeseen);
  std::printf("foreseen %.3f of the time\n",
              absl::FDivDuration(foreseen, clock_.Now() - again));
  EXPECT_LE(foreseen, (clock_.Now() - again) * 0.95);
}

}  // namespace
}  // namespace terrace
