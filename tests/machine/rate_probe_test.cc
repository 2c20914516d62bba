#include "machine/profile/rate_probe.h"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/fault_engine.h"
#include "tests/support/manual_clock.h"

namespace terrace {
namespace {

constexpr int64_t kMiB = 1 << 20;

// Completes at once, and remembers what it was asked for.
class RecordingEngine final : public IoEngine {
 public:
  absl::StatusOr<int> AddFile(int) override { return 0; }
  void RegisterArena(absl::Span<std::byte>) override {}
  int Submit(absl::Span<const IoRequest> requests) override {
    for (const IoRequest& request : requests) {
      calls.push_back(request);
      done_.push_back({request.tag, request.size_bytes});
      most_in_flight = std::max(most_in_flight, done_.size());
    }
    return static_cast<int>(requests.size());
  }
  int Poll(absl::Span<IoResult> results) override {
    int n = 0;
    while (n < static_cast<int>(results.size()) && !done_.empty()) {
      results[static_cast<size_t>(n++)] = done_.front();
      done_.pop_front();
    }
    return n;
  }
  void Wait(absl::Time) override {}
  void Wake() override {}
  EngineInfo info() const override { return {.name = "recording"}; }

  std::vector<IoRequest> calls;
  size_t most_in_flight = 0;

 private:
  std::deque<IoResult> done_;
};

class RateProbeTest : public testing::Test {
 protected:
  RateProbe ProbeOf(IoEngine& engine, int64_t file_bytes) {
    return {.engine = &engine,
            .file = 0,
            .file_bytes = file_bytes,
            .arena = absl::MakeSpan(arena_),
            .clock = &SystemClock(),
            .path = "the path"};
  }
  std::vector<std::byte> arena_ =
      std::vector<std::byte>(static_cast<size_t>(8 * kMiB));
};

TEST_F(RateProbeTest, WriteOnceWritesEachByteOnce) {
  RecordingEngine engine;
  ASSERT_TRUE(WriteOnce(ProbeOf(engine, 24 * kMiB)).ok());
  std::map<int64_t, int64_t> pieces;
  for (const IoRequest& call : engine.calls) {
    EXPECT_EQ(call.direction, IoDirection::kWrite);
    EXPECT_TRUE(pieces.emplace(call.offset, call.size_bytes).second);
  }
  int64_t end = 0;
  for (const auto& [offset, size] : pieces) {
    EXPECT_EQ(offset, end);
    end = offset + size;
  }
  EXPECT_EQ(end, 24 * kMiB);
}

TEST_F(RateProbeTest, AWindowOfPiecesIsInFlightInBuffersOfTheirOwn) {
  RecordingEngine engine;
  const auto rate = MeasureRate(ProbeOf(engine, 32 * kMiB), LoadKind::kRead,
                                kMiB, 4 * kMiB, absl::Milliseconds(2));
  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_EQ(engine.most_in_flight, 4u);
  EXPECT_EQ(rate->direction, "read");
  EXPECT_EQ(rate->piece_bytes, kMiB);
  EXPECT_EQ(rate->window_bytes, 4 * kMiB);
  EXPECT_LE(rate->latency_p50_us, rate->latency_p99_us);
  for (size_t i = 0; i < engine.calls.size(); ++i) {
    const IoRequest& call = engine.calls[i];
    EXPECT_EQ(call.offset, static_cast<int64_t>(i) % 32 * kMiB);
    EXPECT_GE(call.data, arena_.data());
    EXPECT_LE(call.data + call.size_bytes, arena_.data() + 4 * kMiB);
  }
}

TEST_F(RateProbeTest, AMixTakesTurnsInTwoHalvesOfTheFile) {
  RecordingEngine engine;
  ASSERT_TRUE(MeasureRate(ProbeOf(engine, 32 * kMiB), LoadKind::kMixed, kMiB,
                          8 * kMiB, absl::Milliseconds(2))
                  .ok());
  for (size_t i = 0; i < engine.calls.size(); ++i) {
    const IoRequest& call = engine.calls[i];
    const bool writes = i % 2 == 1;
    EXPECT_EQ(call.direction,
              writes ? IoDirection::kWrite : IoDirection::kRead);
    EXPECT_EQ(call.offset >= 16 * kMiB, writes);
    EXPECT_LE(call.offset + call.size_bytes, 32 * kMiB);
  }
}

// A paced memory device in virtual time: waiting is jumping to its next event.
class VirtualDevice final : public IoEngine {
 public:
  VirtualDevice(VirtualClock& clock, int64_t bytes, const PaceOptions& pace)
      : clock_(clock),
        engine_(
            MakePacedEngine(MakeMemoryEngine(1, bytes, clock), pace, clock)) {}
  absl::StatusOr<int> AddFile(int fd) override { return engine_->AddFile(fd); }
  void RegisterArena(absl::Span<std::byte> arena) override {
    engine_->RegisterArena(arena);
  }
  int Submit(absl::Span<const IoRequest> requests) override {
    return engine_->Submit(requests);
  }
  int Poll(absl::Span<IoResult> results) override {
    return engine_->Poll(results);
  }
  void Wait(absl::Time deadline) override {
    const absl::Time next = std::min(engine_->NextEvent(), deadline);
    if (next > clock_.Now()) clock_.JumpTo(next);
  }
  void Wake() override {}
  EngineInfo info() const override { return engine_->info(); }

 private:
  VirtualClock& clock_;
  const std::unique_ptr<IoEngine> engine_;
};

TEST_F(RateProbeTest, TheRateIsTheDevices) {
  const double pace = 64.0 * kMiB;
  for (const auto& [kind, rate] :
       {std::pair(LoadKind::kRead, pace), std::pair(LoadKind::kWrite, pace / 2),
        // One of each in turn goes at the pace of the slower, twice.
        std::pair(LoadKind::kMixed, pace)}) {
    VirtualClock clock;
    VirtualDevice device(clock, 64 * kMiB,
                         {.read_bytes_per_second = 64 * kMiB,
                          .write_bytes_per_second = 32 * kMiB});
    ASSERT_TRUE(device.AddFile(0).ok());
    RateProbe probe = ProbeOf(device, 64 * kMiB);
    probe.clock = &clock;
    const auto measured =
        MeasureRate(probe, kind, kMiB, 8 * kMiB, absl::Milliseconds(300));
    ASSERT_TRUE(measured.ok()) << measured.status();
    // A mix ends on reads that came ahead of their turn.
    EXPECT_NEAR(measured->bytes_per_second, rate, 0.05 * rate);
    // Each piece waits for the window before it; in a mix, that of the slower
    // direction gathers in front of its server.
    const double window_us = 8 * kMiB / rate * 1e6;
    EXPECT_GE(measured->latency_p99_us, 0.95 * window_us);
    EXPECT_LE(measured->latency_p99_us,
              (kind == LoadKind::kMixed ? 2 : 1.05) * window_us);
  }
}

TEST_F(RateProbeTest, AFaultIsNamedAndNothingStaysInFlight) {
  for (const auto& [fault, code] :
       {std::pair(Fault{.kind = FaultKind::kError, .error = ENOSPC},
                  absl::StatusCode::kResourceExhausted),
        std::pair(Fault{.kind = FaultKind::kShort},
                  absl::StatusCode::kDataLoss)}) {
    auto plan = std::make_shared<FaultPlan>();
    plan->FailCall(5, fault);
    auto engine = MakeFaultEngine(MakeMemoryEngine(1, 32 * kMiB, SystemClock()),
                                  plan, SystemClock());
    ASSERT_TRUE(engine->AddFile(0).ok());
    const auto rate = MeasureRate(ProbeOf(*engine, 32 * kMiB), LoadKind::kRead,
                                  kMiB, 8 * kMiB, absl::Milliseconds(50));
    EXPECT_EQ(rate.status().code(), code) << rate.status();
    EXPECT_NE(rate.status().ToString().find("the path"), std::string::npos);
    IoResult result;
    EXPECT_EQ(engine->Poll(absl::MakeSpan(&result, 1)), 0);
  }
}

// Takes `takes` requests and completes none.
class SilentEngine final : public IoEngine {
 public:
  SilentEngine(VirtualClock& clock, int takes) : clock_(clock), left_(takes) {}
  absl::StatusOr<int> AddFile(int) override { return 0; }
  void RegisterArena(absl::Span<std::byte>) override {}
  int Submit(absl::Span<const IoRequest> requests) override {
    const int taken = std::min(left_, static_cast<int>(requests.size()));
    left_ -= taken;
    return taken;
  }
  int Poll(absl::Span<IoResult>) override { return 0; }
  void Wait(absl::Time deadline) override { clock_.JumpTo(deadline); }
  void Wake() override {}
  EngineInfo info() const override { return {.name = "silent"}; }

 private:
  VirtualClock& clock_;
  int left_;
};

TEST_F(RateProbeTest, ADeviceThatDoesNotAnswerIsLeftAfterAMinute) {
  VirtualClock clock;
  SilentEngine engine(clock, 3);
  RateProbe probe = ProbeOf(engine, 32 * kMiB);
  probe.clock = &clock;
  const absl::Time start = clock.Now();
  const absl::Status status = WriteOnce(probe);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_NE(status.ToString().find("the path"), std::string::npos) << status;
  EXPECT_NE(status.ToString().find("3 requests"), std::string::npos) << status;
  EXPECT_GE(clock.Now() - start, absl::Seconds(60));
  EXPECT_LE(clock.Now() - start, absl::Seconds(62));
}

TEST_F(RateProbeTest, AnEngineThatTakesNothingIsNoSuccess) {
  VirtualClock clock;
  SilentEngine engine(clock, 0);
  RateProbe probe = ProbeOf(engine, 32 * kMiB);
  probe.clock = &clock;
  const absl::Status status = WriteOnce(probe);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.ToString().find("the path"), std::string::npos) << status;
}

}  // namespace
}  // namespace terrace
