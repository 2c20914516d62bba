// The work of a step grows with its chunks, not with their square: a model of
// 70 billion parameters pushes about 70,000 of them at once.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>

#include "tests/contract/contract_fixture.h"

namespace terrace {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kPlace = 2 * kPage;
constexpr int kSlots = 16;

struct Shape {
  int residents = 0;
  int streamed = 0;
  int steps = 0;
};

// All chunks of a step pushed at once, each with a deadline of its own.
void Step(TestRuntime& world, RequestQueue& queue, int64_t step,
          const std::vector<TensorId>& chunks) {
  ASSERT_TRUE(queue.BeginStep(step).ok());
  const Access access = step == 1 ? Access::kOverwrite : Access::kUpdate;
  for (size_t i = 0; i < chunks.size(); ++i) {
    ASSERT_TRUE(queue.Push({{chunks[i], access}}, i, world.Soon()).ok());
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    absl::StatusOr<Ready> ready = queue.Next(world.Soon());
    ASSERT_TRUE(ready.ok()) << ready.status();
    ASSERT_TRUE(ready->pins.ok()) << ready->pins.status();
    // One byte a page says enough here.
    std::byte& first = ready->pins->front().data()[0];
    if (step > 1) {
      ASSERT_EQ(first, static_cast<std::byte>(ready->tag + step - 1));
    }
    first = static_cast<std::byte>(ready->tag + step);
  }
  ASSERT_TRUE(queue.CommitStep({.step = step}).ok());
}

// Processor time of all threads: what runs beside the test does not count.
double ProcessorSeconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

double Seconds(const Shape& shape) {
  const int chunks = shape.residents + shape.streamed;
  TestRuntimeOptions options;
  options.budget_bytes = (shape.residents + kSlots) * kPlace;
  options.path_bytes = chunks * kPlace;
  TestRuntime world(TestWorld::kMemory, options);
  const std::vector<TensorId> tensors = world.RegisterMany(chunks, kPage);
  auto queue = world.OpenQueue(kPage, kSlots);
  const double start = ProcessorSeconds();
  for (int step = 1; step <= shape.steps; ++step) {
    Step(world, *queue, step, tensors);
  }
  queue.reset();
  // A window that takes all: every resident has to leave for it.
  auto whole = world.OpenQueue(kPage, shape.residents + kSlots);
  const double seconds = ProcessorSeconds() - start;
  std::printf("%d resident, %d streamed, %d steps: %.3f s\n", shape.residents,
              shape.streamed, shape.steps, seconds);
  return seconds;
}

// Medians, as a single run may be lucky or not.
template <typename Run>
double MedianOf(int runs, Run run) {
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) seconds.push_back(run());
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

// Eight times the chunks: 8 if linear, 64 if quadratic.
void ExpectLinear(const Shape& shape) {
  const Shape small = {shape.residents / 8, shape.streamed / 8, shape.steps};
  const double once = MedianOf(5, [&] { return Seconds(small); });
  EXPECT_LT(MedianOf(3, [&] { return Seconds(shape); }), 32 * once);
}

TEST(ScaleContract, AStepOfManyStreamedChunksIsLinear) {
  ExpectLinear({.residents = 16, .streamed = 20000, .steps = 2});
}

TEST(ScaleContract, ManyResidentsAndTheirEvictionAreLinear) {
  ExpectLinear({.residents = 16000, .streamed = 4000, .steps = 2});
}

// As many pins at once, each from a queue of its own that is closed already.
double HoldSeconds(int count) {
  TestRuntimeOptions options;
  options.budget_bytes = (count + 2) * kPlace;
  options.path_bytes = count * kPlace;
  TestRuntime world(TestWorld::kMemory, options);
  const std::vector<TensorId> tensors = world.RegisterMany(count, kPage);
  const double start = ProcessorSeconds();
  std::vector<Pin> pins;
  for (const TensorId tensor : tensors) {
    absl::StatusOr<Pin> pin =
        world.runtime().Acquire(tensor, Access::kOverwrite, world.Soon());
    EXPECT_TRUE(pin.ok()) << pin.status();
    pins.push_back(*std::move(pin));
  }
  pins.clear();
  world.OpenQueue(kPage, 2).reset();
  const double seconds = ProcessorSeconds() - start;
  std::printf("%d pins acquired and held: %.3f s\n", count, seconds);
  return seconds;
}

TEST(ScaleContract, ManyHeldPinsAreLinear) {
  const double once = MedianOf(5, [] { return HoldSeconds(1000); });
  EXPECT_LT(MedianOf(3, [] { return HoldSeconds(8000); }), 32 * once);
}

// Of what the mover says of itself, once: a turn of two threads.
double StatsSeconds(Runtime& runtime) {
  const auto start = std::chrono::steady_clock::now();
  runtime.GetStats();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

TEST(ScaleContract, TensorsThatHaveEndedCostNothing) {
  constexpr int kAtATime = 1000;
  TestRuntimeOptions options;
  options.path_bytes = (kAtATime + 1) * kPlace;
  TestRuntime fresh(TestWorld::kMemory, options);
  TestRuntime world(TestWorld::kMemory, options);
  const TensorId other = fresh.Register("kept", kPage);
  const TensorId kept = world.Register("kept", kPage);
  for (int i = 0; i < 150; ++i) {
    for (const TensorId each : world.RegisterMany(kAtATime, kPage)) {
      ASSERT_TRUE(world.runtime().Unregister(each).ok());
    }
  }
  // In turn, and the least of each: a busy machine slows both worlds' turns,
  // and some turns of either are undisturbed.
  double few = StatsSeconds(fresh.runtime());
  double many = StatsSeconds(world.runtime());
  for (int i = 0; i < 5000; ++i) {
    few = std::min(few, StatsSeconds(fresh.runtime()));
    many = std::min(many, StatsSeconds(world.runtime()));
  }
  std::printf("GetStats: %.1f us, %.1f us after 150,000 that ended\n",
              few * 1e6, many * 1e6);
  // A walk over them would take 90 us; two threads that share a processor, up
  // to 30 more than two that do not.
  EXPECT_LT(many, few + 45e-6);
  EXPECT_TRUE(fresh.runtime().Unregister(other).ok());
  EXPECT_TRUE(world.runtime().Unregister(kept).ok());
}

}  // namespace
}  // namespace terrace
