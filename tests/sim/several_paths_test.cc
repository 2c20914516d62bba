// An optimizer over two devices of different rates, in virtual time: what it
// gets of their sum, when one becomes slow, and when one refuses writes. The
// reference of speed is bytes over the rates; that of contents is the serial
// loop of terrace/adam.h.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/optimizer.h"
#include "tests/runtime/reference_optimizer.h"
#include "tests/sim/world.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kChunkBytes = 64 << 10;
constexpr int64_t kChunks = 256;
constexpr int kSlots = 24;
constexpr int64_t kSlotBytes = kChunkBytes + 4096;
constexpr double kMiB = 1 << 20;

class SeveralPaths : public testing::Test {
 protected:
  SeveralPaths()
      : model_(Model::Of({{"p", DType::kFloat32, kChunks * kChunkBytes / 8}},
                         /*seed=*/5)) {
    WorldOptions options;
    options.budget_bytes = (kSlots + 4) * kSlotBytes;
    options.paths = 2;
    options.path_bytes = 2 * kChunks * kSlotBytes;
    world_.emplace(options);
    SetRate(0, 96 * kMiB);
    SetRate(1, 32 * kMiB);
    OptimizerOptions optimizer;
    optimizer.chunk_bytes = kChunkBytes;
    optimizer.window_bytes = kSlots * kSlotBytes;
    reference_ = std::make_unique<ReferenceOptimizer>(model_, optimizer);
    auto made = OffloadedOptimizer::Create(world_->runtime(), model_.specs(),
                                           optimizer);
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) optimizer_ = *std::move(made);
  }

  // Of both directions alike.
  void SetRate(int path, double bytes_per_second) {
    rates_[path] = bytes_per_second;
    const auto rate = static_cast<int64_t>(bytes_per_second);
    world_->SetPace(path, {rate, rate});
  }
  double Sum() const { return rates_[0] + rates_[1]; }
  Stats stats() { return world_->runtime().GetStats(); }
  PathStats path(int path) { return stats().paths[static_cast<size_t>(path)]; }

  absl::Status Step() {
    model_.DrawGradients(reference_->step() + 1);
    reference_->Step({}, model_);
    return optimizer_->Step({}, model_.data(),
                            world_->clock().Now() + absl::Seconds(600));
  }
  // That many steps: what they moved, each direction alone, over what the two
  // devices could have.
  double Share(int steps) {
    const Stats before = stats();
    const absl::Time start = world_->clock().Now();
    for (int i = 0; i < steps; ++i) {
      const absl::Status status = Step();
      EXPECT_TRUE(status.ok()) << status;
    }
    const double seconds = absl::ToDoubleSeconds(world_->clock().Now() - start);
    const Stats after = stats();
    const int64_t moved =
        std::min(after.bytes_read() - before.bytes_read(),
                 after.bytes_written() - before.bytes_written());
    return static_cast<double>(moved) / seconds / Sum();
  }
  // Steps until rates are known and homes follow them.
  void WarmUp() {
    for (int i = 0; i < 5; ++i) {
      const absl::Status status = Step();
      ASSERT_TRUE(status.ok()) << status;
    }
  }
  void ExpectNothingLost() {
    EXPECT_EQ(reference_->Difference(model_), "");
    EXPECT_EQ(reference_->StateDifference(*optimizer_), "");
    EXPECT_TRUE(world_->broken().ok()) << world_->broken();
  }

  Model model_;
  double rates_[2] = {};
  std::optional<World> world_;
  std::unique_ptr<ReferenceOptimizer> reference_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;  // first to go
};

TEST_F(SeveralPaths, ThreeToOneGivesTheSumOfTheRates) {
  WarmUp();
  const double share = Share(4);
  std::printf("%.3f of the sum\n", share);
  EXPECT_GE(share, 0.95);
  for (const int path : {0, 1}) {
    const PathStats told = this->path(path);
    EXPECT_NEAR(told.read_bytes_per_second, rates_[path], 0.1 * rates_[path]);
    EXPECT_NEAR(told.write_bytes_per_second, rates_[path], 0.1 * rates_[path]);
    EXPECT_EQ(told.state, PathState::kHealthy);
  }
  ExpectNothingLost();
}

TEST_F(SeveralPaths, FromTheSecondStepAfterOneHalvesItIsTheNewSum) {
  for (const int slow : {0, 1}) {
    WarmUp();
    SetRate(slow, rates_[slow] / 2);
    const double first = Share(1);
    const double second = Share(1);
    const double later = Share(3);
    std::printf("path %d halves: %.3f, then %.3f, then %.3f of the new sum\n",
                slow, first, second, later);
    EXPECT_GE(second, 0.90);
    EXPECT_GE(later, 0.95);
    EXPECT_EQ(path(slow).state, PathState::kSlow);
    EXPECT_FALSE(path(slow).degraded);
    SetRate(slow, rates_[slow] * 2);
    Share(1);
    EXPECT_GE(Share(1), 0.90) << "fast again";
    EXPECT_EQ(path(slow).state, PathState::kHealthy);
  }
  ExpectNothingLost();
}

TEST_F(SeveralPaths, AChangeAmidAStepIsFollowedTheSame) {
  WarmUp();
  const absl::Time start = world_->clock().Now();
  ASSERT_TRUE(Step().ok());
  const absl::Duration half = (world_->clock().Now() - start) / 2;
  world_->clock().AddEvent(world_->clock().Now() + half,
                           [this] { SetRate(0, rates_[0] / 2); });
  Share(2);  // in which it happens, and the first one after
  const double second = Share(1);
  std::printf("%.3f of the new sum\n", second);
  EXPECT_GE(second, 0.90);
  ExpectNothingLost();
}

TEST_F(SeveralPaths, WhereWritesAreRefusedTrainingGoesOnAndNothingIsLost) {
  WarmUp();
  const absl::Time start = world_->clock().Now();
  ASSERT_TRUE(Step().ok());
  const absl::Duration half = (world_->clock().Now() - start) / 2;
  world_->clock().AddEvent(world_->clock().Now() + half, [&] {
    world_->faults().FailFile(1, {.kind = FaultKind::kError, .error = EROFS},
                              CallFilter::kWrites);
  });
  for (int i = 0; i < 4; ++i) {
    const int64_t read = path(1).bytes_read;
    const absl::Status status = Step();
    EXPECT_TRUE(status.ok()) << status;
    // What lies there is read as long as it is needed.
    EXPECT_EQ(path(1).bytes_read > read, i < 2) << "step " << i;
    EXPECT_EQ(reference_->Difference(model_), "");
  }
  // It was told, and hardly asked again: what was under way, one try a step.
  EXPECT_TRUE(path(1).degraded);
  EXPECT_EQ(path(1).state, PathState::kRefusesWrites);
  EXPECT_THAT(std::string(path(1).write_error.message()), HasSubstr("EROFS"));
  EXPECT_THAT(std::string(path(1).write_error.message()),
              HasSubstr(path(1).file));
  EXPECT_EQ(stats().first_error.code(), path(1).write_error.code());
  EXPECT_LE(world_->faults().faults(), kSlots + 4);
  EXPECT_FALSE(path(0).degraded);

  world_->faults().Clear();
  EXPECT_TRUE(Step().ok());
  EXPECT_FALSE(path(1).degraded);
  Share(2);
  EXPECT_GE(Share(1), 0.90);
  ExpectNothingLost();
}

TEST_F(SeveralPaths, WhatCannotBeReadIsDataLossAndNamed) {
  WarmUp();
  world_->faults().FailFile(1, {.kind = FaultKind::kError, .error = EIO},
                            CallFilter::kReads);
  absl::Status lost = Step();
  if (lost.ok()) lost = Step();
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  const std::string message(lost.message());
  EXPECT_THAT(message, HasSubstr("tensor '"));
  EXPECT_THAT(message, HasSubstr(path(1).file));
  EXPECT_THAT(message, HasSubstr(", offset "));
  EXPECT_THAT(message, HasSubstr("EIO"));
  EXPECT_EQ(path(1).state, PathState::kUnreadable);
  world_->faults().Clear();
  EXPECT_EQ(Step(), lost);  // for good
}

}  // namespace
}  // namespace terrace
