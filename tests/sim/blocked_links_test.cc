// LinkStats::seconds_blocked of an optimizer's run beside what its steps report
// of themselves: over two disks of different speeds, alone and below a mapped
// tier, in virtual time.
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "terrace/optimizer.h"
#include "tests/optimizer/reference_optimizer.h"
#include "tests/sim/world.h"

namespace terrace {
namespace {

constexpr int64_t kChunkBytes = 64 << 10;
constexpr int64_t kChunks = 64;
constexpr int kSlots = 6;
constexpr int64_t kSlotBytes = kChunkBytes + 4096;
constexpr int64_t kWholeMiB = 1 << 20;
constexpr double kMicrosecond = 1e-6;

struct Blocked {
  double read = 0;
  double write = 0;
  double space = 0;
};

class BlockedLinks : public testing::Test {
 protected:
  void Make(const std::vector<TierSpec>& mapped) {
    world_.emplace(WorldOptions{.budget_bytes = (kSlots + 4) * kSlotBytes,
                                .paths = 2,
                                .path_bytes = 2 * kChunks * kSlotBytes,
                                .mapped = mapped});
    world_->SetPace(0, {96 * kWholeMiB, 96 * kWholeMiB});
    world_->SetPace(1, {32 * kWholeMiB, 32 * kWholeMiB});
    OptimizerOptions options;
    options.chunk_bytes = kChunkBytes;
    options.window_bytes = kSlots * kSlotBytes;
    auto made =
        OffloadedOptimizer::Create(world_->runtime(), model_.specs(), options);
    ASSERT_TRUE(made.ok()) << made.status();
    optimizer_ = *std::move(made);
  }
  void Steps(int count) {
    for (int step = 1; step <= count; ++step) {
      model_.DrawGradients(step);
      const absl::Status status = optimizer_->Step(
          {}, model_.data(), world_->clock().Now() + absl::Seconds(600));
      ASSERT_TRUE(status.ok()) << status;
      const StepReport& report = optimizer_->last_report();
      measured_.read += report.blocked_read_seconds;
      measured_.write += report.blocked_write_seconds;
      measured_.space += report.blocked_space_seconds;
    }
  }
  const std::vector<LinkStats>& Links() {
    links_ = world_->runtime().GetStats().links;
    return links_;
  }
  void ExpectSumsAgree() {
    Blocked counted;
    for (const LinkStats& link : Links()) {
      (link.to == "dram" ? counted.read : counted.write) +=
          link.seconds_blocked;
      std::printf("%s to %s: %.6f s\n", link.from.c_str(), link.to.c_str(),
                  link.seconds_blocked);
    }
    std::printf(
        "links: %.6f s up, %.6f s down; steps: %.6f s, %.6f s, %.6f s\n",
        counted.read, counted.write, measured_.read, measured_.write,
        measured_.space);
    EXPECT_GT(measured_.read, 0);
    EXPECT_GT(measured_.write, 0);
    EXPECT_NEAR(counted.read, measured_.read, kMicrosecond);
    EXPECT_NEAR(counted.write, measured_.write, kMicrosecond);
  }

  Model model_ =
      Model::Of({{"p", DType::kFloat32, kChunks* kChunkBytes / 8}}, 5);
  Blocked measured_;
  std::vector<LinkStats> links_;
  std::optional<World> world_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;  // first to go
};

TEST_F(BlockedLinks, OfTwoDisksTheSumIsWhatTheStepsMeasured) {
  Make({});
  Steps(6);
  ExpectSumsAgree();
}

TEST_F(BlockedLinks, BelowAMappedTierItIsTheSame) {
  Make({{TierKind::kFar, "node1", kChunks / 4 * kSlotBytes}});
  Steps(6);
  ExpectSumsAgree();
}

}  // namespace
}  // namespace terrace
