#include "optimizer/chunks/chunk_layout.h"

#include <algorithm>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

constexpr int64_t kMiB = 1 << 20;

// Every element of every parameter in exactly one place, chunks within their
// size, on their grid, of one dtype; arrays apart and aligned.
void ExpectSound(const std::vector<ParameterSpec>& specs,
                 const std::vector<Chunk>& chunks, int64_t chunk_bytes) {
  std::vector<int64_t> next(specs.size(), 0);
  int64_t first = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const Chunk& chunk = chunks[i];
    EXPECT_EQ(chunk.first, first);
    EXPECT_LE(chunk.payload_bytes() + kTensorHeaderBytes, chunk_bytes);
    const bool last_of_dtype =
        i + 1 == chunks.size() || chunks[i + 1].dtype != chunk.dtype;
    if (!last_of_dtype) {
      EXPECT_EQ(chunk.count % kChunkGranule, 0);
      EXPECT_EQ(chunk.count, ChunkElements(chunk.dtype, chunk_bytes));
    }
    int64_t offset = 0;
    for (const Segment& segment : chunk.segments) {
      const auto p = static_cast<size_t>(segment.parameter);
      EXPECT_EQ(specs[p].dtype, chunk.dtype);
      EXPECT_GT(segment.count, 0);
      EXPECT_EQ(segment.chunk_offset, offset);
      EXPECT_EQ(segment.parameter_offset, next[p]);
      next[p] += segment.count;
      offset += segment.count;
    }
    EXPECT_EQ(offset, chunk.count);
    EXPECT_EQ(chunk.stride() * 4 % 64, 0);
    EXPECT_GE(chunk.stride(), chunk.count);
    EXPECT_EQ(chunk.payload_bytes(),
              (chunk.dtype == DType::kFloat32 ? 8 : 12) * chunk.stride());
    first += chunk.count;
  }
  for (size_t p = 0; p < specs.size(); ++p) EXPECT_EQ(next[p], specs[p].count);
}

TEST(ChunkLayout, CoversEveryElementOnceForRandomModels) {
  const uint64_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    std::vector<ParameterSpec> specs;
    const int parameters = 1 + static_cast<int>(random() % 20);
    for (int i = 0; i < parameters; ++i) {
      const int64_t most = int64_t{1} << (random() % 19);
      specs.push_back({"p", static_cast<DType>(random() % 3),
                       static_cast<int64_t>(random() % most)});
    }
    const int64_t chunk_bytes =
        kSmallestChunkBytes + static_cast<int64_t>(random() % kMiB);
    ExpectSound(specs, CutIntoChunks(specs, chunk_bytes), chunk_bytes);
    if (HasFailure()) return;
  }
}

TEST(ChunkLayout, FullChunksOfEightMebibytesHoldThePlannedElements) {
  EXPECT_EQ(ChunkElements(DType::kBFloat16, 8 * kMiB), 696320);
  EXPECT_EQ(ChunkElements(DType::kFloat32, 8 * kMiB), 1044480);
}

TEST(ChunkLayout, AModelWithoutElementsHasNoChunks) {
  EXPECT_TRUE(CutIntoChunks({}, kMiB).empty());
  const ParameterSpec empty[] = {{"a", DType::kFloat32, 0}};
  EXPECT_TRUE(CutIntoChunks(empty, kMiB).empty());
  const auto plan = PlanChunks(empty, OptimizerOptions{}, kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->chunks.empty());
  EXPECT_EQ(plan->plan.window_bytes, 0);
}

struct PlanCase {
  int64_t parameters;
  DType dtype;
  double budget_share;  // of the state
  double overhead;      // allowed on disk traffic
};

class PlanForBudget : public testing::TestWithParam<PlanCase> {};

TEST_P(PlanForBudget, WindowIsHalfTheBudgetAtMostAndPaddingIsSmall) {
  const PlanCase& c = GetParam();
  const std::vector<ParameterSpec> specs = {{"a", c.dtype, c.parameters - 777},
                                            {"b", c.dtype, 777}};
  const int64_t element_bytes = c.dtype == DType::kFloat32 ? 8 : 12;
  const int64_t state = c.parameters * element_bytes;
  const auto budget = static_cast<int64_t>(c.budget_share * state);
  const auto plan = OffloadedOptimizer::Plan(specs, {}, budget);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->parameters, c.parameters);
  EXPECT_EQ(plan->state_bytes, state);
  EXPECT_LE(plan->window_bytes, budget / 2);
  EXPECT_GE(plan->slots, std::min<int64_t>(4, plan->chunks));
  EXPECT_LE(plan->chunk_bytes + kTensorHeaderBytes, 8 * kMiB);
  EXPECT_LE(plan->disk_bytes, state * (1 + c.overhead));
  EXPECT_GE(plan->disk_bytes, state);
  EXPECT_LE(plan->minimum_budget_bytes, budget);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, PlanForBudget,
    testing::Values(PlanCase{124'000'000, DType::kFloat32, 0.10, 0.005},
                    PlanCase{124'000'000, DType::kFloat32, 0.25, 0.005},
                    PlanCase{124'000'000, DType::kBFloat16, 0.10, 0.005},
                    PlanCase{124'000'000, DType::kBFloat16, 1.10, 0.005},
                    PlanCase{30'000'000, DType::kFloat32, 0.10, 0.02},
                    PlanCase{30'000'000, DType::kBFloat16, 0.10, 0.02},
                    PlanCase{30'000'000, DType::kFloat32, 0.25, 0.02},
                    PlanCase{3'000'000, DType::kFloat32, 0.25, 0.10},
                    PlanCase{7'000'000'000, DType::kBFloat16, 0.10, 0.005}));

// Of 800 MB of state.
TEST(Plan, TheWindowIsLargeWhereMostStreams) {
  const ParameterSpec model[] = {{"a", DType::kFloat32, 100'000'000}};
  const auto share = [&](int64_t budget) {
    const auto plan = OffloadedOptimizer::Plan(model, {}, budget);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return static_cast<double>(plan->window_bytes) /
           static_cast<double>(budget);
  };
  EXPECT_NEAR(share(80'000'000), 0.5, 0.06);      // less than 72
  EXPECT_NEAR(share(160'000'000), 0.4, 0.04);     // 64
  EXPECT_NEAR(share(400'000'000), 0.25, 0.03);    // more than 40
  EXPECT_NEAR(share(720'000'000), 0.1864, 0.02);  // 128 MiB
}

TEST(Plan, NamesTheMinimumBudgetAndTheMinimumWorks) {
  const std::vector<ParameterSpec> specs = {{"a", DType::kFloat32, 1'000'003},
                                            {"b", DType::kBFloat16, 99'991}};
  const auto refused = OffloadedOptimizer::Plan(specs, {}, 1000);
  ASSERT_TRUE(absl::IsResourceExhausted(refused.status()));
  const auto generous = OffloadedOptimizer::Plan(specs, {}, 64 * kMiB);
  ASSERT_TRUE(generous.ok()) << generous.status();
  const int64_t minimum = generous->minimum_budget_bytes;
  EXPECT_NE(
      std::string(refused.status().message()).find(std::to_string(minimum)),
      std::string::npos)
      << refused.status();
  EXPECT_TRUE(OffloadedOptimizer::Plan(specs, {}, minimum).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(
      OffloadedOptimizer::Plan(specs, {}, minimum - 1).status()));
}

auto FieldsOf(const OptimizerPlan& plan) {
  return std::tuple(plan.parameters, plan.state_bytes, plan.disk_bytes,
                    plan.chunk_bytes, plan.chunks, plan.slots,
                    plan.window_bytes, plan.minimum_budget_bytes);
}

int64_t LargestPayload(const std::vector<Chunk>& chunks) {
  int64_t largest = 0;
  for (const Chunk& chunk : chunks) {
    largest = std::max(largest, chunk.payload_bytes());
  }
  return largest;
}

// Of a model of random parameters, the first `first` of which have chunks.
void ExpectSumsOfChunks(const std::vector<ParameterSpec>& specs, size_t first,
                        const OptimizerOptions& options, int64_t budget) {
  std::vector<Chunk> all =
      CutIntoChunks({specs.data(), first}, options.chunk_bytes);
  std::vector<Chunk> smallest = all;
  for (const Chunk& chunk : CutIntoChunks(specs, kSmallestChunkBytes, first)) {
    smallest.push_back(chunk);
  }
  const int64_t minimum =
      WindowBytes(LargestPayload(smallest),
                  static_cast<int>(std::min<size_t>(3, smallest.size())));
  const auto planned = PlanChunks(specs, options, budget, all, first);
  if (!planned.ok()) {
    ASSERT_TRUE(absl::IsResourceExhausted(planned.status()));
    EXPECT_NE(std::string(planned.status().message())
                  .find(" " + std::to_string(minimum) + " bytes"),
              std::string::npos)
        << minimum << ": " << planned.status();
    return;
  }
  const OptimizerPlan& plan = planned->plan;
  EXPECT_EQ(plan.minimum_budget_bytes, minimum);
  all.insert(all.end(), planned->chunks.begin(), planned->chunks.end());
  EXPECT_EQ(plan.chunks, static_cast<int64_t>(all.size()));
  EXPECT_EQ(plan.chunk_bytes, LargestPayload(all));
  int64_t elements = 0, payload_bytes = 0, disk_bytes = 0;
  for (const Chunk& chunk : all) {
    elements += chunk.count;
    payload_bytes += chunk.arrays() * chunk.count * 4;
    disk_bytes += ResidentBytes(chunk.payload_bytes());
  }
  EXPECT_EQ(plan.parameters, elements);
  EXPECT_EQ(plan.state_bytes, payload_bytes);
  EXPECT_EQ(plan.disk_bytes, disk_bytes);
  if (first > 0) return;
  const auto alone = OffloadedOptimizer::Plan(specs, options, budget);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(FieldsOf(*alone), FieldsOf(plan));
}

TEST(Plan, IsTheSumOfItsChunksForRandomModels) {
  const uint64_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 500 && !testing::Test::HasFailure(); ++round) {
    std::vector<ParameterSpec> specs(random() % 12);
    for (ParameterSpec& spec : specs) {
      const int64_t most = int64_t{1} << (random() % 21);
      spec = {"p", static_cast<DType>(random() % 3),
              static_cast<int64_t>(random() % most)};
      // Whole chunks of the smallest size, now and then.
      if (random() % 4 == 0) spec.count = spec.count / 4096 * 4096;
    }
    const size_t first = random() % 2 * (random() % (specs.size() + 1));
    OptimizerOptions options;
    options.chunk_bytes += static_cast<int64_t>(random() % kMiB);
    if (random() % 2 == 0) options.chunk_bytes = kSmallestChunkBytes;
    if (random() % 4 == 0) {
      options.window_bytes = static_cast<int64_t>(random() % (4 * kMiB));
    }
    ExpectSumsOfChunks(specs, first, options,
                       static_cast<int64_t>(random() % (32 * kMiB)));
  }
}

TEST(Plan, MakesNoChunks) {
  // As many as would not fit any memory.
  const int64_t count = int64_t{1} << 55;
  const auto plan = OffloadedOptimizer::Plan({{"a", DType::kBFloat16, count}},
                                             {}, int64_t{1} << 40);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const int64_t full = ChunkElements(DType::kBFloat16, 8 * kMiB);
  EXPECT_EQ(plan->chunks, (count + full - 1) / full);
  EXPECT_EQ(plan->state_bytes, 12 * count);
}

TEST(Plan, HoldsEveryBudgetFromTheMinimumUp) {
  const std::vector<ParameterSpec> specs = {{"a", DType::kFloat32, 700'001}};
  const int64_t minimum =
      OffloadedOptimizer::Plan(specs, {}, 64 * kMiB)->minimum_budget_bytes;
  for (int64_t budget = minimum; budget < 16 * kMiB; budget += 50'021) {
    const auto plan = OffloadedOptimizer::Plan(specs, {}, budget);
    ASSERT_TRUE(plan.ok()) << budget << ": " << plan.status();
    ASSERT_LE(plan->window_bytes, budget);
    ASSERT_EQ(plan->window_bytes,
              WindowBytes(plan->chunk_bytes, static_cast<int>(plan->slots)));
    ASSERT_GE(plan->slots, std::min<int64_t>(3, plan->chunks));
    if (budget >= 2 * minimum) {
      ASSERT_LE(plan->window_bytes, budget / 2);
    }
  }
}

TEST(Plan, KeepsToTheSizesThatOptionsName) {
  const std::vector<ParameterSpec> specs = {{"a", DType::kFloat32, 5'000'011}};
  OptimizerOptions options;
  options.chunk_bytes = 256 << 10;
  options.window_bytes = kMiB;
  const auto plan = OffloadedOptimizer::Plan(specs, options, 64 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE(plan->chunk_bytes + kTensorHeaderBytes, options.chunk_bytes);
  EXPECT_LE(plan->window_bytes, options.window_bytes);
  EXPECT_GE(plan->slots, 3);
  options.window_bytes = 1000;
  EXPECT_TRUE(absl::IsResourceExhausted(
      OffloadedOptimizer::Plan(specs, options, 64 * kMiB).status()));
}

TEST(Plan, RefusesBadParametersAndOptions) {
  const std::vector<ParameterSpec> good = {{"a", DType::kFloat32, 10}};
  const auto refused = [](const std::vector<ParameterSpec>& specs,
                          const OptimizerOptions& options) {
    return absl::IsInvalidArgument(
        OffloadedOptimizer::Plan(specs, options, 64 * kMiB).status());
  };
  EXPECT_FALSE(refused(good, {}));
  EXPECT_TRUE(refused({{"a", DType::kFloat32, -1}}, {}));
  EXPECT_TRUE(refused({{"a", static_cast<DType>(7), 1}}, {}));
  EXPECT_TRUE(refused({{"a", DType::kFloat32, INT64_MAX}}, {}));
  EXPECT_TRUE(refused(good, {.name = ""}));
  EXPECT_TRUE(refused(good, {.adam = {.beta1 = 1}}));
  EXPECT_TRUE(refused(good, {.adam = {.beta2 = -0.1}}));
  EXPECT_TRUE(refused(good, {.adam = {.epsilon = -1}}));
  EXPECT_TRUE(refused(good, {.adam = {.weight_decay = -1}}));
  EXPECT_TRUE(refused(good, {.max_gradient_norm = -1}));
  EXPECT_TRUE(refused(good, {.chunk_bytes = kSmallestChunkBytes - 1}));
  EXPECT_TRUE(refused(good, {.window_bytes = -1}));
}

}  // namespace
}  // namespace terrace
