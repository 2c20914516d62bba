// An optimizer in training over two paths whose I/O can be made to fail, and
// the training that plain vectors and the scalar step give.
//
//   FaultTraining training(TestWorld::kUring, {});
//   training.Draw(1);
//   absl::Status status = training.Step();
//   EXPECT_EQ(training.Difference(), "");
//
// One thread. The steps are the test's: Draw goes on to the next one, Step
// attempts it and may be called again.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "terrace/optimizer.h"
#include "tests/optimizer/reference_optimizer.h"
#include "tests/support/runtime_fixture.h"

namespace terrace {

struct FaultTrainingOptions {
  absl::Duration io_timeout = absl::Seconds(60);
  bool prefetch = true;
  int paths = 2;
};

class FaultTraining {
 public:
  FaultTraining(TestWorld world, const FaultTrainingOptions& options)
      // Eight chunks and more, of all three dtypes, off every grid.
      : model_(Model::Of({{"a", DType::kFloat32, 29989},
                          {"b", DType::kBFloat16, 14009},
                          {"c", DType::kFloat32, 1},
                          {"d", DType::kFloat16, 7001}},
                         17)) {
    OptimizerOptions optimizer;
    optimizer.chunk_bytes = kChunkBytes;
    optimizer.max_gradient_norm = 1;
    reference_ = std::make_unique<ReferenceOptimizer>(model_, optimizer);
    TestRuntimeOptions runtime;
    // Three slots, and two chunks that stay.
    runtime.budget_bytes = 5 * (kChunkBytes + 4096);
    runtime.paths = options.paths;
    runtime.path_bytes = 1 << 20;
    runtime.io_timeout = options.io_timeout;
    runtime.prefetch = options.prefetch;
    world_ = std::make_unique<TestRuntime>(world, runtime);
    auto made = OffloadedOptimizer::Create(world_->runtime(), model_.specs(),
                                           optimizer);
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) optimizer_ = *std::move(made);
  }
  ~FaultTraining() {
    LetGo();
    optimizer_.reset();
  }
  FaultTraining(const FaultTraining&) = delete;
  FaultTraining& operator=(const FaultTraining&) = delete;

  // The gradients of the next step; the reference makes it.
  void Draw() {
    model_.DrawGradients(reference_->step() + 1);
    reference_->Step({}, model_);
  }
  absl::Status Step(const StepArguments& arguments = {}) {
    return optimizer_->Step(arguments, model_.data(), world_->Soon());
  }
  // As Step, with one gradient's sign turned: no norm shows that.
  absl::Status StepWithOtherGradients() {
    Values& gradient = model_.parameters()[1].gradient;
    const int64_t last = gradient.count() - 1;
    const float before = gradient.Get(last);
    gradient.Set(last, -before);
    const absl::Status status = Step();
    gradient.Set(last, before);
    return status;
  }

  // Ends all faults, and what they hold back comes back.
  void LetGo() {
    faults().Clear();
    world_->runtime().Prefetch({});  // the engine sees it when woken
  }
  // Until no buffer is the kernel's past its deadline any more.
  bool WaitForQuarantine() {
    return world_->WaitUntil(
        [this] { return runtime().GetStats().host.quarantined_bytes == 0; });
  }

  // Steps until every path takes writes again.
  bool Heal() {
    const auto refuses = [](const TierStats& path) { return path.degraded; };
    for (int step = 0; step < 20; ++step) {
      const std::vector<TierStats> paths = runtime().GetStats().paths();
      if (std::none_of(paths.begin(), paths.end(), refuses)) return true;
      Draw();
      if (!Step().ok()) return false;
    }
    return false;
  }

  // Of parameters, and of all that the optimizer keeps; empty: none.
  std::string Difference() const { return reference_->Difference(model_); }
  std::string StateDifference() const {
    return reference_->StateDifference(*optimizer_);
  }
  absl::Status ReadFirstMoment() {
    std::vector<float> out(
        static_cast<size_t>(model_.parameters()[0].spec.count));
    return optimizer_->ReadState(0, OffloadedOptimizer::StateKind::kFirstMoment,
                                 absl::MakeSpan(out), world_->Soon());
  }

  FaultPlan& faults() { return world_->faults(); }
  Runtime& runtime() { return world_->runtime(); }
  OffloadedOptimizer& optimizer() { return *optimizer_; }

 private:
  static constexpr int64_t kChunkBytes = 64 << 10;

  Model model_;
  std::unique_ptr<ReferenceOptimizer> reference_;
  std::unique_ptr<TestRuntime> world_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;
};

}  // namespace terrace
