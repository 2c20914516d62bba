// The limit that adapts, on devices in virtual time: exact, whatever else the
// machine does.
#include "aio/queue/in_flight_limit.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

#include "gtest/gtest.h"
#include "tests/aio/model_path.h"

namespace terrace {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr double kGiB = 1 << 30;
constexpr int64_t kTransfer = 8 * kMiB;

class InFlightLimitTest : public ModelPathTest {
 protected:
  InFlightLimitTest() : ModelPathTest(kTransfer) {}

  // Reads and writes of these bytes, all enqueued at once and in turn, and
  // `demands` reads of 1 MiB, one every 5 ms; all of one class if `fifo`. How
  // long it took, in seconds.
  double Move(int64_t read_bytes, int64_t written_bytes, int demands = 0,
              bool fifo = false) {
    const absl::Time start = clock_.Now();
    Start(read_bytes, written_bytes, fifo);
    std::map<uint64_t, absl::Time> sent;
    absl::Time next_demand = start;
    while (io_->pending() > 0 || demands > 0) {
      while (demands > 0 && clock_.Now() >= next_demand) {
        sent[++tag_] = clock_.Now();
        io_->Enqueue(path_, {IoDirection::kRead,
                             fifo ? IoClass::kPrefetch : IoClass::kDemand,
                             buffer_.data(), 0, kMiB, tag_});
        --demands;
        next_demand += absl::Milliseconds(5);
      }
      std::vector<Completion> ended;
      io_->Poll(&ended);
      for (const Completion& completion : ended) {
        EXPECT_TRUE(completion.status.ok()) << completion.status;
        const auto demand = sent.find(completion.tag);
        if (demand == sent.end()) continue;
        latencies_.push_back(
            absl::ToDoubleMilliseconds(clock_.Now() - demand->second));
      }
      absl::Time next = io_->NextEvent();
      if (demands > 0) next = std::min(next, next_demand);
      if (next > clock_.Now() && next < absl::InfiniteFuture()) {
        clock_.JumpTo(next);
      }
    }
    return absl::ToDoubleSeconds(clock_.Now() - start);
  }

  void Start(int64_t read_bytes, int64_t written_bytes, bool fifo = false) {
    for (int64_t at = 0; at < std::max(read_bytes, written_bytes);
         at += kTransfer) {
      if (at < read_bytes) Enqueue(IoDirection::kRead, at, fifo);
      if (at < written_bytes) Enqueue(IoDirection::kWrite, at, fifo);
    }
  }

  double P99() {
    std::sort(latencies_.begin(), latencies_.end());
    return latencies_[latencies_.size() * 99 / 100];
  }

  std::vector<double> latencies_;  // of demand reads, ms

 private:
  void Enqueue(IoDirection direction, int64_t at, bool fifo) {
    const bool is_read = direction == IoDirection::kRead;
    io_->Enqueue(
        path_,
        {direction, is_read || fifo ? IoClass::kPrefetch : IoClass::kWriteBack,
         buffer_.data(), at, kTransfer, ++tag_});
  }
};

class SmallBehindLarge : public InFlightLimitTest,
                         public testing::WithParamInterface<double> {};
INSTANTIATE_TEST_SUITE_P(Rates, SmallBehindLarge,
                         testing::Values(0.5, 1.0, 2.0, 4.0));

TEST_P(SmallBehindLarge, P99Is3MsBeyondItsOwnTimeAndNothingIsLost) {
  const double rate = GetParam() * kGiB;
  // As many as come while the bulk is under way.
  const int demands = static_cast<int>(1 / GetParam() / 0.005);
  Make({rate, rate});
  Move(1 << 30, 1 << 30, demands);  // the limit settles
  latencies_.clear();
  double classes = 0;
  int runs = 0;
  for (; latencies_.size() < 1000; ++runs) {
    classes += Move(1 << 30, 1 << 30, demands);
  }
  const double own_ms = static_cast<double>(kMiB) / rate * 1e3;
  const double p99_ms = P99();
  std::printf("p99 %.2f of %.2f ms\n", p99_ms, 3 + own_ms);
  EXPECT_LE(p99_ms, 3 + own_ms) << "limit " << limit() / 1024 << " KiB";
  IoQueueOptions fixed;
  fixed.adapts = false;
  Make({rate, rate}, fixed);
  const double fifo = Move(1 << 30, 1 << 30, demands, true);
  EXPECT_GE(fifo / (classes / runs), 0.95);
}

TEST_F(InFlightLimitTest, ShrinksToWhatPassesInTheLatencyAskedFor) {
  Make({kGiB / 2, kGiB / 2, absl::Microseconds(100), true});
  // 1 GiB at half a GiB per second.
  EXPECT_LE(Move(1 << 30, 0), 2 / 0.97);
  EXPECT_LE(limit(), 1.2 * kMiB);
  EXPECT_GE(limit(), 0.8 * kMiB);
  EXPECT_LE(Move(1 << 29, 1 << 29), 2 / 0.97);
}

TEST_F(InFlightLimitTest, GrowsWhereTheDeviceIsFarAway) {
  // 32 MiB are on the way: the first limit gives a quarter of the rate.
  Make({4 * kGiB, 4 * kGiB, absl::Milliseconds(8)});
  Move(1 << 30, 0);
  EXPECT_GE(limit(), 24 * kMiB);
  EXPECT_LE(Move(1 << 30, 0), 0.25 * 1.4);
}

TEST_F(InFlightLimitTest, ShrinksAgainWhenADeviceIsFarAwayNoMore) {
  Make({4 * kGiB, 4 * kGiB, absl::Milliseconds(8)});
  Move(1 << 30, 0);
  Move(1 << 30, 0);
  ASSERT_GE(limit(), 24 * kMiB);
  device_.latency = absl::ZeroDuration();
  device_.read_rate = kGiB / 4;
  Move(int64_t{4} << 30, 0);
  EXPECT_LE(limit(), kMiB);
}

TEST_F(InFlightLimitTest, FollowsADeviceThatSlowsDown) {
  Make({4 * kGiB, 4 * kGiB});
  Move(1 << 30, 0);
  EXPECT_GE(limit(), 6 * kMiB);  // 6.6 are 1.65 ms of it
  device_.read_rate = kGiB / 4;
  Move(1 << 29, 0);
  EXPECT_LE(limit(), kMiB);
  EXPECT_LE(Move(1 << 29, 0), 2 / 0.97);
}

TEST_F(InFlightLimitTest, ANoisyDeviceKeepsItsThroughput) {
  const DeviceModel noisy{kGiB, kGiB, absl::ZeroDuration(), false,
                          absl::Milliseconds(12)};
  IoQueueOptions fixed;
  fixed.adapts = false;
  Make(noisy, fixed);
  double as_it_was = 0;
  for (int i = 0; i < 8; ++i) as_it_was += Move(1 << 30, 1 << 30);
  Make(noisy);
  double adapted = 0;
  for (int i = 0; i < 8; ++i) adapted += Move(1 << 30, 1 << 30);
  EXPECT_LE(adapted, as_it_was / 0.95);
}

// A step's traffic: what was read is written back, six of eight chunks at once,
// and only that makes room for the next reads. So now one direction has the
// queue to itself, now the other.
TEST_F(InFlightLimitTest, BothDirectionsAreKeptBusyByASmallLimit) {
  constexpr int64_t kRate = 300 * kMiB;
  constexpr int64_t kChunk = 516 << 10;
  constexpr int kChunks = 6 * 300;
  for (const int64_t first : {kMiB / 2, kMiB}) {
    IoQueueOptions options;
    options.in_flight_bytes = first;
    Make({kRate, kRate, absl::Microseconds(100)}, options);
    const absl::Time start = clock_.Now();
    int read = 0;
    int written = 0;
    std::vector<int> computed;
    const auto enqueue = [&](IoDirection direction, int chunk) {
      const bool is_read = direction == IoDirection::kRead;
      io_->Enqueue(
          path_, {direction, is_read ? IoClass::kPrefetch : IoClass::kWriteBack,
                  buffer_.data(), chunk * kChunk, kChunk,
                  static_cast<uint64_t>(2 * chunk + (is_read ? 0 : 1))});
    };
    for (; read < 8; ++read) enqueue(IoDirection::kRead, read);
    while (written < kChunks) {
      for (const Completion& completion : Turn()) {
        if (completion.tag % 2 == 0) {
          computed.push_back(static_cast<int>(completion.tag / 2));
          if (computed.size() < 6) continue;
          for (const int chunk : computed) enqueue(IoDirection::kWrite, chunk);
          computed.clear();
        } else {
          ++written;
          if (read < kChunks) enqueue(IoDirection::kRead, read++);
        }
      }
    }
    const double seconds = absl::ToDoubleSeconds(clock_.Now() - start);
    EXPECT_GE(kChunks * static_cast<double>(kChunk) / seconds / kRate, 0.95)
        << first / 1024 << " KiB at first, now " << limit() / 1024;
  }
}

TEST_F(InFlightLimitTest, WhoHasTheQueueToHimselfLeavesHalfInAMixedLoad) {
  Make({kGiB, kGiB, absl::Milliseconds(2)});
  Move(1 << 29, 1 << 29);
  const auto in_flight = [this] {
    std::vector<Completion> ended;
    io_->Poll(&ended);
    return io_->stats(path_).in_flight_bytes;
  };
  Start(4 * kTransfer, 0);
  EXPECT_LE(in_flight(), limit() / 2);
  const int64_t reads = in_flight();
  EXPECT_GT(reads, 0);
  // The other half is there at once, for a demand read too.
  io_->Enqueue(path_, {IoDirection::kRead, IoClass::kDemand, buffer_.data(), 0,
                       64 << 10, 1 << 20});
  EXPECT_EQ(in_flight(), reads + (64 << 10));
  Start(0, kTransfer);
  EXPECT_GT(in_flight(), limit() / 2);
  while (io_->pending() > 0) Turn();
  // No write came for twelve limits: all of it is the reads', although none of
  // these loads was long enough to measure.
  for (int i = 0; i < 30; ++i) Move(kTransfer, 0);
  Start(4 * kTransfer, 0);
  EXPECT_GT(in_flight(), limit() / 2);
  while (io_->pending() > 0) Turn();
}

TEST_F(InFlightLimitTest, TheSmallestLimitGrowsWhereTheDeviceIsFarAway) {
  IoQueueOptions options;
  options.in_flight_bytes = kMiB;
  Make({4 * kGiB, 4 * kGiB, absl::Milliseconds(20)}, options);
  Move(1 << 30, 1 << 30);
  EXPECT_GE(limit(), 16 * kMiB);
}

TEST_F(InFlightLimitTest, WeightsHoldWhereBothDirectionsShareTheDevice) {
  IoQueueOptions options;
  options.weights[static_cast<int>(IoClass::kPrefetch)] = 4;
  Make({kGiB, kGiB, absl::ZeroDuration(), true}, options);
  Move(1 << 28, 1 << 28);  // the limit settles
  const IoPathStats before = io_->stats(path_);
  Start(1 << 29, 1 << 29);
  while (io_->stats(path_).bytes_read - before.bytes_read < 1 << 28) {
    Turn();
  }
  const auto written = static_cast<double>(io_->stats(path_).bytes_written -
                                           before.bytes_written);
  EXPECT_NEAR(written / (1 << 28), 0.25, 0.03);
  while (io_->pending() > 0) Turn();
}

TEST_F(InFlightLimitTest, StaysWhereItWasSet) {
  IoQueueOptions options;
  options.in_flight_bytes = 6 * kMiB;
  options.piece_bytes = 2 * kMiB;
  options.adapts = false;
  Make({kGiB / 4, kGiB / 4}, options);
  Move(1 << 28, 1 << 28, 10);
  EXPECT_EQ(limit(), 6 * kMiB);
}

TEST_F(InFlightLimitTest, LearnsNothingFromADeviceThatIsNotKeptBusy) {
  Make({kGiB / 8, kGiB / 8});
  for (int i = 0; i < 100; ++i) Move(kTransfer, 0);
  EXPECT_EQ(limit(), IoQueueOptions().in_flight_bytes);
}

TEST_F(InFlightLimitTest, PiecesAreEqualWhateverTheLimitBecomes) {
  Make({kGiB / 2, kGiB / 2, absl::ZeroDuration(), true});
  Move(1 << 30, 1 << 29);
  const IoPathStats stats = io_->stats(path_);
  EXPECT_LE(stats.requests_written, (1 << 29) / (256 << 10));
  EXPECT_EQ(stats.bytes_written, 1 << 29);
}

}  // namespace
}  // namespace terrace
