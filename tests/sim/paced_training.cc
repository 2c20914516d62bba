#include "tests/sim/paced_training.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

// For copies of each mapped tier in both directions, and for kernels beside.
constexpr int kThreads = 16;

}  // namespace

PacedTraining::PacedTraining(const std::vector<PacedTier>& tiers,
                             const Size& size)
    : model_(Model::Of({{"p", DType::kFloat32, size.chunks * kChunkBytes / 8}},
                       /*seed=*/5)) {
  WorldOptions options;
  options.budget_bytes = (size.slots + size.residents) * kSlotBytes;
  options.path_bytes = 0;
  for (const PacedTier& tier : tiers) {
    if (tier.kind == TierKind::kDisk) {
      options.path_budgets.push_back(tier.budget_bytes);
      options.path_bytes = std::max(options.path_bytes, tier.budget_bytes);
      continue;
    }
    EXPECT_TRUE(options.path_budgets.empty()) << "a mapped tier after a disk";
    options.mapped.push_back(
        {tier.kind, absl::StrCat("mapped ", mapped_++), tier.budget_bytes});
  }
  options.paths = static_cast<int>(options.path_budgets.size());
  options.threads = mapped_ > 0 ? kThreads : 0;
  options.check_every = size.check_every;
  world_.emplace(options);
  rates_.resize(tiers.size());
  for (size_t i = 0; i < tiers.size(); ++i) {
    SetRate(static_cast<int>(i), tiers[i].bytes_per_second);
  }
  OptimizerOptions optimizer;
  optimizer.chunk_bytes = kChunkBytes;
  optimizer.window_bytes = size.slots * kSlotBytes;
  reference_ = std::make_unique<ReferenceOptimizer>(model_, optimizer);
  auto made =
      OffloadedOptimizer::Create(world_->runtime(), model_.specs(), optimizer);
  EXPECT_TRUE(made.ok()) << made.status();
  if (made.ok()) optimizer_ = *std::move(made);
}

void PacedTraining::SetRate(int tier, double bytes_per_second) {
  rates_[static_cast<size_t>(tier)] = bytes_per_second;
  const auto rate = static_cast<int64_t>(bytes_per_second);
  if (tier < mapped_) {
    world_->SetMappedPace(tier, {rate, rate});
  } else {
    world_->SetPace(tier - mapped_, {rate, rate});
  }
}

double PacedTraining::Sum() const {
  return std::accumulate(rates_.begin(), rates_.end(), 0.0);
}

absl::Status PacedTraining::Step() {
  model_.DrawGradients(reference_->step() + 1);
  reference_->Step({}, model_);
  return optimizer_->Step({}, model_.data(),
                          world_->clock().Now() + absl::Seconds(600));
}

double PacedTraining::Share(int steps) {
  const Stats before = stats();
  const absl::Time start = world_->clock().Now();
  for (int i = 0; i < steps; ++i) {
    const absl::Status status = Step();
    EXPECT_TRUE(status.ok()) << status;
  }
  const double seconds = absl::ToDoubleSeconds(world_->clock().Now() - start);
  const Stats after = stats();
  used_.clear();
  for (size_t i = 0; i < rates_.size(); ++i) {
    const auto used = [&](size_t link) {
      return static_cast<double>(after.links[link].bytes -
                                 before.links[link].bytes) /
             seconds / rates_[i];
    };
    absl::StrAppendFormat(&used_, "%s%.2f down %.2f up", i == 0 ? "" : ", ",
                          used(2 * i), used(2 * i + 1));
  }
  const int64_t moved =
      std::min(after.bytes_read() - before.bytes_read(),
               after.bytes_written() - before.bytes_written());
  return static_cast<double>(moved) / seconds / Sum();
}

void PacedTraining::WarmUp() {
  for (int i = 0; i < 5; ++i) {
    const absl::Status status = Step();
    ASSERT_TRUE(status.ok()) << status;
  }
}

void PacedTraining::ExpectNothingLost() {
  EXPECT_EQ(reference_->Difference(model_), "");
  EXPECT_EQ(reference_->StateDifference(*optimizer_), "");
  EXPECT_TRUE(world_->broken().ok()) << world_->broken();
}

}  // namespace terrace
