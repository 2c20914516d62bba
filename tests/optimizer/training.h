// A model, its reference, a MapRuntime and an optimizer over a pool: what most
// tests of the optimizer begin with.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/pool_executor.h"
#include "terrace/optimizer.h"
#include "tests/optimizer/reference_optimizer.h"
#include "tests/support/map_runtime.h"

namespace terrace {

inline Time Soon() { return absl::Now() + absl::Seconds(60); }

inline OptimizerOptions SmallChunks() {
  OptimizerOptions options;
  options.chunk_bytes = 64 << 10;
  return options;
}

class Training {
 public:
  Training(Model model, const OptimizerOptions& options, int threads,
           const MapRuntime::Behaviour& behaviour)
      : model_(std::move(model)),
        reference_(model_, options),
        executor_(*MakePoolExecutor(threads, {})),
        runtime_(behaviour, SystemClock(), *executor_) {
    auto created =
        OffloadedOptimizer::Create(runtime_, model_.specs(), options);
    EXPECT_TRUE(created.ok()) << created.status();
    optimizer_ = *std::move(created);
  }
  ~Training() {
    EXPECT_THAT(runtime_.violations(), testing::IsEmpty());
    EXPECT_EQ(runtime_.pins(), 0);
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
  MapRuntime& runtime() { return runtime_; }
  OffloadedOptimizer& optimizer() { return *optimizer_; }

 private:
  Model model_;
  ReferenceOptimizer reference_;
  std::unique_ptr<Executor> executor_;
  MapRuntime runtime_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;
};

}  // namespace terrace
