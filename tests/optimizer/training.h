// A model, its reference, a MapRuntime and an optimizer over a pool: what most
// tests of the optimizer begin with.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/pool_executor.h"
#include "terrace/optimizer.h"
#include "tests/optimizer/reference_optimizer.h"
#include "tests/support/door/runtime_door.h"
#include "tests/support/map_runtime.h"

namespace terrace {

inline Time Soon() { return absl::Now() + absl::Seconds(60); }

inline OptimizerOptions SmallChunks() {
  OptimizerOptions options;
  options.chunk_bytes = 64 << 10;
  return options;
}

// What a test says that needs a MapRuntime, and is skipped behind a door.
inline constexpr char kNeedsMap[] = "faults and counts are a MapRuntime's";

// Behind the program's door, where it has one, there is a runtime in place of
// the map, with a path in memory.
class Training {
 public:
  Training(Model model, const OptimizerOptions& options, int threads,
           const MapRuntime::Behaviour& behaviour)
      : model_(std::move(model)),
        reference_(model_, options),
        executor_(*MakePoolExecutor(threads, {})) {
    if (runtime_door == nullptr) {
      auto map =
          std::make_unique<MapRuntime>(behaviour, SystemClock(), *executor_);
      map_ = map.get();
      runtime_.runtime = std::move(map);
    } else {
      Options of_runtime;
      of_runtime.host_budget_bytes = behaviour.budget_bytes;
      of_runtime.memory_paths = 1;
      of_runtime.memory_path_bytes = 64 << 20;
      of_runtime.threads = threads;
      of_runtime.huge_pages = HugePages::kOff;
      auto reached = Reach(of_runtime);
      EXPECT_TRUE(reached.ok()) << reached.status();
      runtime_ = *std::move(reached);
    }
    auto created =
        OffloadedOptimizer::Create(*runtime_, model_.specs(), options);
    EXPECT_TRUE(created.ok()) << created.status();
    optimizer_ = *std::move(created);
  }
  ~Training() {
    if (map_ == nullptr) return;
    EXPECT_THAT(map_->violations(), testing::IsEmpty());
    EXPECT_EQ(map_->pins(), 0);
  }

  absl::Status Step(const StepArguments& arguments = {}) {
    return optimizer_->Step(arguments, model_.data(), Soon());
  }
  // Both sides, with new gradients.
  void StepBoth(int64_t step, const StepArguments& arguments = {},
                float scale = 1) {
    model_.DrawGradients(step, scale);
    reference_.Step(arguments, model_);
    const absl::Status status = Step(arguments);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(reference_.Difference(model_), "") << "step " << step;
  }
  void ExpectSameState() {
    EXPECT_EQ(reference_.StateDifference(*optimizer_), "");
    EXPECT_EQ(optimizer_->step(), reference_.step());
    EXPECT_THAT(optimizer_->parameter_steps(),
                testing::ElementsAreArray(reference_.parameter_steps()));
  }

  Model& model() { return model_; }
  ReferenceOptimizer& reference() { return reference_; }
  Runtime& runtime() { return *runtime_; }
  // The runtime, where it is one; behind a door it is not.
  bool has_map() const { return map_ != nullptr; }
  MapRuntime& map() {
    TERRACE_CHECK(map_ != nullptr);
    return *map_;
  }
  // Of a map; else none are counted.
  int64_t calls() const { return map_ == nullptr ? 0 : map_->calls(); }
  OffloadedOptimizer& optimizer() { return *optimizer_; }

 private:
  Model model_;
  ReferenceOptimizer reference_;
  std::unique_ptr<Executor> executor_;
  ReachedRuntime runtime_;
  MapRuntime* map_ = nullptr;
  std::unique_ptr<OffloadedOptimizer> optimizer_;
};

}  // namespace terrace
