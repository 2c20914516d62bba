// The optimizer's state machine over the production runtime in virtual time,
// undisturbed and under random faults: bit for bit the serial loop of
// terrace/adam.h, or an error that says so.
#include <cstdio>
#include <memory>
#include <optional>
#include <random>

#include "gtest/gtest.h"
#include "terrace/optimizer.h"
#include "tests/optimizer/reference_optimizer.h"
#include "tests/sim/seeds.h"
#include "tests/sim/world.h"

namespace terrace {
namespace {

constexpr int64_t kKiB = 1 << 10;

WorldOptions Arranged(uint64_t seed, std::mt19937_64& random) {
  WorldOptions options;
  options.seed = seed;
  options.budget_bytes =
      static_cast<int64_t>(256 + 64 * (random() % 12)) * kKiB;
  options.paths = 1 + static_cast<int>(random() % 3);
  options.parallelism = 1 + static_cast<int>(random() % 3);
  options.task_spread = absl::Microseconds(random() % 2 == 0 ? 1 : 200);
  options.eviction =
      random() % 4 == 0 ? EvictionKind::kLru : EvictionKind::kNextUse;
  options.prefetch = random() % 4 != 0;
  options.io_timeout = absl::Milliseconds(500);
  options.io.piece_bytes = 16 * kKiB << random() % 4;
  options.io.in_flight_bytes = options.io.piece_bytes * 4;
  return options;
}

FaultChances Chances(std::mt19937_64& random) {
  const auto one_in = [&](int64_t n) {
    return random() % 2 == 0 ? 0.0 : 1.0 / static_cast<double>(n);
  };
  FaultChances chances;
  chances.error = random() % 4 == 0 ? 0.01 : 0.0;
  chances.again = one_in(20);
  chances.no_space = one_in(40);
  chances.short_transfer = one_in(10);
  chances.delay = one_in(5);
  chances.reorder = one_in(5);
  chances.bit_flip = random() % 3 == 0 ? 0.005 : 0.0;
  chances.never = random() % 4 == 0 ? 0.01 : 0.0;
  chances.partial_submit = one_in(10);
  return chances;
}

// Drives one attempt. Neither Start nor Advance may let time pass: they would
// be waiting for something.
absl::Status Attempt(World& world, OffloadedOptimizer& optimizer,
                     const StepArguments& arguments, Model& model) {
  absl::Time before = world.clock().Now();
  const absl::Status started = optimizer.Start(arguments, model.data());
  EXPECT_EQ(world.clock().Now(), before) << "Start waited";
  if (!started.ok()) return started;
  const absl::Time late = before + absl::Seconds(600);
  // Once is not enough: what was published last may wait for Advance.
  for (int idle = 0; idle < 3;) {
    before = world.clock().Now();
    const bool done = optimizer.Advance();
    EXPECT_EQ(world.clock().Now(), before) << "Advance waited";
    if (done) return optimizer.result();
    idle = world.clock().Advance() ? 0 : idle + 1;
    if (world.clock().Now() >= late) break;
  }
  ADD_FAILURE() << "the step never ends";
  return absl::InternalError("stuck");
}

// What a fault may make of a step. FailedPrecondition is not among them: this
// customer makes no mistakes.
bool IsTypedForAStep(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsUnavailable(status) ||
         absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status);
}

struct Outcome {
  int steps = 0;
  int incomplete = 0;
  bool lost = false;
};

// Some steps with faults, then some without.
void Train(uint64_t seed, bool faulty, Outcome* outcome) {
  std::mt19937_64 random(seed);
  World world(Arranged(seed, random));
  OptimizerOptions options;
  options.chunk_bytes = 64 * kKiB;
  options.max_gradient_norm = random() % 2 == 0 ? 1 : 0;
  Model model = Model::Mixed(seed);
  ReferenceOptimizer reference(model, options);
  auto created =
      OffloadedOptimizer::Create(world.runtime(), model.specs(), options);
  ASSERT_TRUE(created.ok()) << created.status();
  OffloadedOptimizer& optimizer = **created;
  for (int step = 1; step <= 5; ++step) {
    const StepArguments arguments{.learning_rate = 1e-2 / step};
    model.DrawGradients(step);
    reference.Step(arguments, model);
    if (faulty && step < 5) world.faults().SetChances(Chances(random));
    absl::Status status = Attempt(world, optimizer, arguments, model);
    for (int attempt = 1; !status.ok(); ++attempt) {
      ASSERT_TRUE(faulty && IsTypedForAStep(status)) << status;
      if (absl::IsDataLoss(status)) {
        // For good: it says so, and changes nothing any more.
        world.faults().Clear();
        EXPECT_TRUE(
            absl::IsDataLoss(Attempt(world, optimizer, arguments, model)));
        outcome->lost = true;
        return;
      }
      EXPECT_TRUE(optimizer.incomplete());
      EXPECT_EQ(optimizer.step(), step - 1);
      ++outcome->incomplete;
      ASSERT_LT(attempt, 10) << status;
      if (attempt >= 2) world.faults().Clear();
      status = Attempt(world, optimizer, arguments, model);
    }
    world.faults().Clear();
    ++outcome->steps;
    ASSERT_EQ(reference.Difference(model), "") << "step " << step;
  }
  EXPECT_EQ(optimizer.step(), reference.step());
  EXPECT_EQ(reference.StateDifference(optimizer), "");
}

TEST(OptimizerSimulation, UndisturbedGivesTheBitsOfTheReference) {
  ForEachSeed(5, [](uint64_t seed) {
    Outcome outcome;
    Train(seed, false, &outcome);
    EXPECT_EQ(outcome.steps, 5);
  });
}

TEST(OptimizerSimulation, FaultsGiveTheSameBitsOrATypedError) {
  int completed = 0;
  int incomplete = 0;
  int lost = 0;
  ForEachSeed(10, [&](uint64_t seed) {
    Outcome outcome;
    Train(seed, true, &outcome);
    completed += outcome.steps;
    incomplete += outcome.incomplete;
    lost += outcome.lost ? 1 : 0;
  });
  std::printf("%d steps completed, %d attempts left incomplete, %d lost\n",
              completed, incomplete, lost);
  if (seed_flags().count == 0) {
    EXPECT_GT(incomplete, 0);
    EXPECT_GT(completed, 20);
  }
}

}  // namespace
}  // namespace terrace
