// The optimizer over the real runtime: budgets below the state, one path and
// two, memory devices and files, every engine. Bits against the scalar
// reference, traffic against arithmetic.
#include "terrace/runtime.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "terrace/optimizer.h"
#include "tests/optimizer/reference_optimizer.h"
#include "tests/optimizer/saving.h"
#include "tests/support/door/runtime_door.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

constexpr EngineKind kUring = EngineKind::kUring;
constexpr EngineKind kThreads = EngineKind::kThreads;
constexpr EngineKind kAuto = EngineKind::kAuto;
constexpr DType kF32 = DType::kFloat32;
constexpr DType kBf16 = DType::kBFloat16;

Time Soon() { return absl::Now() + absl::Seconds(60); }

class OptimizerOnFiles : public testing::Test {
 protected:
  void TearDown() override {
    int left = 0;
    for (const std::string& path : paths_) {
      for (const auto& entry : std::filesystem::directory_iterator(path)) {
        if (entry.is_directory()) ++left;
      }
    }
    EXPECT_EQ(left, 0) << "job directories left below " << directory_.path();
  }

  // Without files: memory-backed devices.
  Options MakeOptions(EngineKind engine, bool files, int paths,
                      int64_t budget_bytes) {
    Options options;
    options.host_budget_bytes = budget_bytes;
    options.engine = engine;
    options.threads = 2;
    options.huge_pages = HugePages::kOff;
    for (int i = 0; files && i < paths; ++i) {
      paths_.push_back(
          directory_.MakeDirectory(absl::StrCat("path", paths_.size())));
      options.paths.push_back(paths_.back());
    }
    if (!files) {
      options.memory_paths = paths;
      options.memory_path_bytes = 64 << 20;
    }
    return options;
  }

  const TemporaryDirectory directory_;
  std::vector<std::string> paths_;
};

struct RuntimeCase {
  const char* name;
  EngineKind engine;
  bool files;
  int paths;
  DType dtype;
  double budget_share;
};

class OptimizerOnRuntime : public OptimizerOnFiles,
                           public testing::WithParamInterface<RuntimeCase> {};

// What stays resident saves its bytes both ways: as many chunks as fit beside
// the window, less a tenth. Commits do not wait for write-backs, so up to a
// window of them is counted on either side of the measurement.
void ExpectTraffic(const Stats& before, const Stats& after,
                   const OptimizerPlan& plan, int64_t budget, double steps) {
  const double read = (after.bytes_read() - before.bytes_read()) / steps;
  const double written =
      (after.bytes_written() - before.bytes_written()) / steps;
  const int64_t chunk = WindowBytes(plan.chunk_bytes, 1);
  const int64_t residents = (budget - plan.window_bytes) / chunk;
  const double slack = static_cast<double>(plan.window_bytes) / steps;
  const double bound =
      static_cast<double>(plan.disk_bytes - residents * chunk * 9 / 10) + slack;
  const auto least = static_cast<double>(plan.state_bytes - budget);
  testing::Test::RecordProperty("read_per_step", absl::StrCat(read));
  EXPECT_LE(read, bound) << "of " << plan.disk_bytes;
  EXPECT_LE(written, bound) << "of " << plan.disk_bytes;
  EXPECT_GT(read, least - slack);
  EXPECT_GT(written, least - slack);
}

TEST_P(OptimizerOnRuntime, GivesTheBitsOfTheReferenceAndTheTrafficOfTheSum) {
  const RuntimeCase& c = GetParam();
  // Off every grid: prime sizes, one element, none, width 928.
  Model model = Model::Of({{"wide", c.dtype, 928 * 300},
                           {"one", c.dtype, 1},
                           {"none", c.dtype, 0},
                           {"prime", c.dtype, 150'001},
                           {"other", c.dtype, 99'991}},
                          31);
  OptimizerOptions options;
  options.chunk_bytes = 64 << 10;
  options.max_gradient_norm = 1;
  ReferenceOptimizer reference(model, options);
  const auto all = OffloadedOptimizer::Plan(model.specs(), options, 1 << 30);
  ASSERT_TRUE(all.ok()) << all.status();
  const auto budget = static_cast<int64_t>(
      c.budget_share * static_cast<double>(all->state_bytes));

  auto runtime = Reach(MakeOptions(c.engine, c.files, c.paths, budget));
  if (absl::IsUnavailable(runtime.status())) {
    GTEST_SKIP() << runtime.status();
  }
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  auto optimizer =
      OffloadedOptimizer::Create(**runtime, model.specs(), options);
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  const OptimizerPlan plan = (*optimizer)->plan();
  EXPECT_LE(plan.window_bytes, budget / 2);

  constexpr int kSteps = 12;
  constexpr int kWarmUp = 3;
  Stats before;
  for (int step = 1; step <= kSteps; ++step) {
    model.DrawGradients(step);
    reference.Step({.learning_rate = 1e-2 / step}, model);
    const absl::Status status =
        (*optimizer)
            ->Step({.learning_rate = 1e-2 / step}, model.data(), Soon());
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(reference.Difference(model), "") << "step " << step;
    EXPECT_EQ((*optimizer)->last_report().gradient_norm,
              reference.gradient_norm());
    if (step == 1) {
      EXPECT_EQ((*runtime)->GetStats().bytes_read(), 0);
    }
    if (step == kWarmUp) before = (*runtime)->GetStats();
  }
  const Stats after = (*runtime)->GetStats();
  EXPECT_EQ(reference.StateDifference(**optimizer), "");

  ExpectTraffic(before, after, plan, budget, kSteps - kWarmUp);
  EXPECT_LE(after.host.peak_bytes, budget);
  EXPECT_TRUE(after.first_error.ok()) << after.first_error;

  EXPECT_TRUE(absl::IsFailedPrecondition((*runtime)->Close(Soon())));
  optimizer->reset();
  const absl::Status closed = (*runtime)->Close(Soon());
  EXPECT_TRUE(closed.ok()) << closed;
}

INSTANTIATE_TEST_SUITE_P(
    Budgets, OptimizerOnRuntime,
    testing::Values(
        RuntimeCase{"memory_one_10", kAuto, false, 1, kF32, 0.10},
        RuntimeCase{"memory_two_25", kAuto, false, 2, kBf16, 0.25},
        RuntimeCase{"uring_one_10", kUring, true, 1, kF32, 0.10},
        RuntimeCase{"uring_two_10", kUring, true, 2, kBf16, 0.10},
        RuntimeCase{"uring_two_25", kUring, true, 2, kF32, 0.25},
        RuntimeCase{"threads_one_25", kThreads, true, 1, kBf16, 0.25},
        RuntimeCase{"threads_two_10", kThreads, true, 2, kF32, 0.10},
        RuntimeCase{"threads_two_25", kThreads, true, 2, DType::kFloat16,
                    0.25}),
    [](const auto& param) { return std::string(param.param.name); });

// A run that grows, is saved, and goes on in another process's place: other
// engine, other number of paths, other budget and chunks.
TEST_F(OptimizerOnFiles, GrowsAndIsResumedElsewhereWithTheSameBits) {
  Model model = Model::Of({{"one", kF32, 1}, {"brain", kBf16, 60'013}}, 32);
  OptimizerOptions options;
  options.chunk_bytes = 64 << 10;
  options.max_gradient_norm = 1;
  ReferenceOptimizer reference(model, options);
  auto first = Reach(MakeOptions(kThreads, true, 1, 1 << 20));
  ASSERT_TRUE(first.ok()) << first.status();
  auto optimizer = OffloadedOptimizer::Create(**first, model.specs(), options);
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  int step = 0;
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      model.DrawGradients(++step);
      reference.Step({}, model);
      const absl::Status status = (*optimizer)->Step({}, model.data(), Soon());
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(reference.Difference(model), "") << "step " << step;
    }
  };
  steps(2);
  const std::vector<ParameterSpec> more = {{"prime", kF32, 250'007},
                                           {"none", kBf16, 0},
                                           {"float16", DType::kFloat16, 9'001}};
  model.Add(more, 33);
  const absl::Status added = (*optimizer)->AddParameters(more);
  ASSERT_TRUE(added.ok()) << added;
  steps(3);
  EXPECT_EQ(reference.StateDifference(**optimizer), "");
  EXPECT_LE((*first)->GetStats().host.peak_bytes, 1 << 20);
  const Saved saved = Save(**optimizer, 10'007);
  optimizer->reset();
  ASSERT_TRUE((*first)->Close(Soon()).ok());

  auto second = Reach(MakeOptions(kAuto, true, 2, 700 << 10));
  ASSERT_TRUE(second.ok()) << second.status();
  options.chunk_bytes = 100 << 10;
  optimizer = OffloadedOptimizer::Create(**second, model.specs(), options);
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  // Into one that has been used: its requests and state must all go.
  Model other = model;
  ASSERT_TRUE((*optimizer)->Step({}, other.data(), Soon()).ok());
  ASSERT_NO_FATAL_FAILURE(Load(saved, 25'013, **optimizer));
  steps(3);
  EXPECT_EQ(reference.StateDifference(**optimizer), "");
  EXPECT_LE((*second)->GetStats().host.peak_bytes, 700 << 10);
  optimizer->reset();
  const absl::Status closed = (*second)->Close(Soon());
  EXPECT_TRUE(closed.ok()) << closed;
}

// The path holds the first parameter and half of the second one's chunks.
TEST(OptimizerInMemory, AdditionsThatFailHalfWayGiveTheirRoomBack) {
  Options runtime_options;
  runtime_options.host_budget_bytes = 1 << 20;
  runtime_options.memory_paths = 1;
  runtime_options.memory_path_bytes = 2 << 20;
  runtime_options.threads = 2;
  runtime_options.huge_pages = HugePages::kOff;
  auto runtime = Reach(runtime_options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const auto used = [&] {
    return (*runtime)->GetStats().paths()[0].used_bytes;
  };
  OptimizerOptions options;
  options.chunk_bytes = 64 << 10;
  const std::vector<ParameterSpec> large = {{"large", kF32, 300'000}};
  const absl::Status refused =
      OffloadedOptimizer::Create(**runtime, large, options).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(used(), 0);

  // The same name again, and all of the room.
  Model model = Model::Of({{"a", kF32, 100'000}}, 52);
  ReferenceOptimizer reference(model, options);
  auto optimizer =
      OffloadedOptimizer::Create(**runtime, model.specs(), options);
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  const int64_t of_one = used();
  EXPECT_GT(of_one, 800'000);
  for (int step = 1; step <= 3; ++step) {
    const absl::Status added = (*optimizer)->AddParameters(large);
    EXPECT_TRUE(absl::IsResourceExhausted(added)) << added;
    EXPECT_EQ(used(), of_one);
    model.DrawGradients(step);
    reference.Step({}, model);
    ASSERT_TRUE((*optimizer)->Step({}, model.data(), Soon()).ok());
    EXPECT_EQ(reference.Difference(model), "") << "step " << step;
  }
  const std::vector<ParameterSpec> small = {{"b", kF32, 100'000}};
  EXPECT_TRUE((*optimizer)->AddParameters(small).ok());
  EXPECT_EQ(used(), 2 * of_one);
}

TEST(OptimizerInMemory, WhatFitsTheBudgetNeverTouchesTheDisk) {
  Model model = Model::Mixed(41);
  OptimizerOptions options;
  options.chunk_bytes = 64 << 10;
  ReferenceOptimizer reference(model, options);
  Options runtime_options;
  runtime_options.host_budget_bytes = 8 << 20;
  runtime_options.memory_paths = 1;
  runtime_options.memory_path_bytes = 64 << 20;
  runtime_options.threads = 2;
  runtime_options.huge_pages = HugePages::kOff;
  auto runtime = Reach(runtime_options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  auto optimizer =
      OffloadedOptimizer::Create(**runtime, model.specs(), options);
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  for (int step = 1; step <= 4; ++step) {
    model.DrawGradients(step);
    reference.Step({}, model);
    const absl::Status status = (*optimizer)->Step({}, model.data(), Soon());
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(reference.Difference(model), "");
  }
  EXPECT_EQ((*runtime)->GetStats().bytes_read(), 0);
  EXPECT_EQ((*runtime)->GetStats().bytes_written(), 0);
}

TEST_F(OptimizerOnFiles, OneThatIsGoneLeavesItsNameAndItsRoom) {
  Model model = Model::Of({{"prime", kF32, 150'001}}, 37);
  OptimizerOptions options;
  options.chunk_bytes = 64 << 10;
  auto runtime = Reach(MakeOptions(kAuto, true, 2, 1 << 20));
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  // With what a write-back under way has both here and there.
  const auto used = [&] {
    int64_t bytes = 0;
    for (const TierStats& path : (*runtime)->GetStats().paths()) {
      bytes += path.used_bytes;
    }
    return bytes;
  };
  for (int i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    ReferenceOptimizer reference(model, options);
    auto optimizer =
        OffloadedOptimizer::Create(**runtime, model.specs(), options);
    ASSERT_TRUE(optimizer.ok()) << optimizer.status();
    for (int step = 1; step <= 2; ++step) {
      model.DrawGradients(step);
      reference.Step({}, model);
      ASSERT_TRUE((*optimizer)->Step({}, model.data(), Soon()).ok());
      ASSERT_EQ(reference.Difference(model), "");
    }
    EXPECT_GT(used(), 0);
    optimizer->reset();
    EXPECT_EQ(used(), 0);
  }
}

}  // namespace
}  // namespace terrace
