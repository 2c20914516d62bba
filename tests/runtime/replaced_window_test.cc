// An optimizer whose window is to be replaced, and cannot be in time: it has
// the old one again as soon as others let it. In virtual time.
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "terrace/optimizer.h"
#include "tests/optimizer/reference_optimizer.h"
#include "tests/runtime/other_client.h"
#include "tests/support/runtime_fixture.h"

namespace terrace {
namespace {

constexpr int64_t kReplacedPage = 4096;
constexpr int64_t kChunkBytes = 64 << 10;
constexpr int64_t kReplacedElements = 30'000;
constexpr int64_t kReplacedBudget = 4 << 20;

int64_t Bytes(const OptimizerPlan& plan) {
  return WindowBytes(plan.chunk_bytes, static_cast<int>(plan.slots));
}

TEST(ReplacedWindowTest, OneThatOthersTookMeanwhileIsWaitedFor) {
  const OptimizerOptions options = {.chunk_bytes = kChunkBytes};
  Model model = Model::Of({{.name = "a", .count = kReplacedElements}}, 1);
  const std::vector<ParameterSpec> more = {
      {.name = "b", .count = kReplacedElements / 2}};
  TestRuntimeOptions runtime_options;
  runtime_options.budget_bytes = kReplacedBudget;
  // What it has, and what it wants then, as where nothing is in the way.
  int64_t had_bytes = 0;
  int64_t wanted_bytes = 0;
  {
    TestRuntime alone(TestWorld::kVirtual, runtime_options);
    auto optimizer =
        OffloadedOptimizer::Create(alone.runtime(), model.specs(), options);
    ASSERT_TRUE(optimizer.ok()) << optimizer.status();
    had_bytes = Bytes((*optimizer)->plan());
    ASSERT_TRUE((*optimizer)->AddParameters(more).ok());
    wanted_bytes = Bytes((*optimizer)->plan());
  }
  const int64_t missing_bytes = wanted_bytes - had_bytes;
  ASSERT_EQ(missing_bytes % (4 * kReplacedPage), 0);
  ASSERT_LT(missing_bytes, had_bytes);

  // The window, and what is missing in two parts, with others between.
  TestRuntime world(TestWorld::kVirtual, runtime_options);
  VirtualClock& clock = world.virtual_clock();
  auto optimizer =
      OffloadedOptimizer::Create(world.runtime(), model.specs(), options);
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  const auto open = [&](int64_t bytes) {
    return world.OpenQueue(bytes - kReplacedPage, 1);  // and its header's page
  };
  const auto first = open(2 * kReplacedPage);
  auto gap = open(missing_bytes / 2);
  const auto between = open(2 * kReplacedPage);
  auto other_gap = open(missing_bytes / 2);
  const auto last = open(kReplacedBudget - wanted_bytes - 4 * kReplacedPage);
  gap.reset();
  other_gap.reset();

  // Another thread's OpenQueue gets of what the optimizer gave up, for a while,
  // what leaves enough for the old window, but in parts.
  OtherClient other(world.runtime());
  bool had_it = false;
  const absl::Time start = clock.Now();
  clock.AddEvent(start + absl::Seconds(1), [&] {
    other.Open(missing_bytes - kReplacedPage, 1, absl::InfiniteFuture());
  });
  clock.AddEvent(start + absl::Seconds(90),
                 [&] { had_it = other.CloseOnceOpen(clock).ok(); });
  const absl::Status refused = (*optimizer)->AddParameters(more);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_TRUE(had_it);

  ReferenceOptimizer reference(model, options);
  model.DrawGradients(1);
  reference.Step({}, model);
  const absl::Status stepped =
      (*optimizer)->Step({}, model.data(), world.Soon());
  EXPECT_TRUE(stepped.ok()) << stepped;
  EXPECT_EQ(reference.Difference(model), "");
}

}  // namespace
}  // namespace terrace
