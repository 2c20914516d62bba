// A run that checkpoints are made of: a model, its optimizer over a runtime of
// some arrangement, and what the training must give, as plain vectors.
#pragma once

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "terrace/checkpoint.h"
#include "terrace/optimizer.h"
#include "tests/optimizer/reference_optimizer.h"
#include "tests/support/door/runtime_door.h"
#include "tests/support/temporary_directory.h"

namespace terrace {

struct Arrangement {
  const char* name = "";
  EngineKind engine = EngineKind::kAuto;
  bool files = false;  // else memory-backed devices
  int paths = 1;
  int64_t budget_bytes = 512 << 10;
  int64_t chunk_bytes = 64 << 10;
};

inline Time InAMinute() { return absl::Now() + absl::Seconds(60); }

// Two dimensions where the count allows it.
inline std::vector<int64_t> ShapeOf(int64_t count) {
  if (count == 1) return {};
  return count % 8 == 0 ? std::vector<int64_t>{count / 8, 8}
                        : std::vector<int64_t>{count};
}

inline std::vector<CheckpointTensor> TensorsOf(Model& model) {
  std::vector<CheckpointTensor> tensors;
  for (ModelParameter& parameter : model.parameters()) {
    tensors.push_back(
        {.name = parameter.spec.name,
         .dtype = parameter.spec.dtype,
         .shape = ShapeOf(parameter.spec.count),
         .data = parameter.values.data(),
         .optimizer_parameter = static_cast<int>(tensors.size())});
  }
  return tensors;
}

class Job {
 public:
  Job(Model model, const Arrangement& arrangement,
      const OptimizerOptions& options = {})
      : model_(std::move(model)) {
    Options runtime;
    runtime.host_budget_bytes = arrangement.budget_bytes;
    runtime.engine = arrangement.engine;
    runtime.threads = 2;
    runtime.huge_pages = HugePages::kOff;
    for (int i = 0; arrangement.files && i < arrangement.paths; ++i) {
      runtime.paths.push_back(scratch_.MakeDirectory(absl::StrCat("path", i)));
    }
    if (!arrangement.files) {
      runtime.memory_paths = arrangement.paths;
      runtime.memory_path_bytes = 64 << 20;
    }
    auto made = Reach(runtime);
    EXPECT_TRUE(made.ok()) << made.status();
    if (!made.ok()) return;
    runtime_ = *std::move(made);
    OptimizerOptions others = options;
    others.chunk_bytes = arrangement.chunk_bytes;
    auto optimizer =
        OffloadedOptimizer::Create(*runtime_, model_.specs(), others);
    EXPECT_TRUE(optimizer.ok()) << optimizer.status();
    if (optimizer.ok()) optimizer_ = *std::move(optimizer);
  }

  bool ok() const { return optimizer_ != nullptr; }
  Model& model() { return model_; }
  OffloadedOptimizer& optimizer() { return *optimizer_; }
  Stats stats() const { return runtime_->GetStats(); }
  // Ends the run: what its runtime did until nothing was under way any more.
  Stats End() {
    optimizer_.reset();
    const absl::Status status = runtime_->Close(InAMinute());
    EXPECT_TRUE(status.ok()) << status;
    return runtime_->GetStats();
  }
  std::vector<CheckpointTensor> tensors() { return TensorsOf(model_); }

  // With the gradients of that step, which the seed of the model draws.
  void Step(int64_t step) {
    model_.DrawGradients(step);
    const absl::Status status =
        optimizer_->Step({}, model_.data(), InAMinute());
    EXPECT_TRUE(status.ok()) << "step " << step << ": " << status;
  }
  absl::Status Save(const std::string& directory,
                    const CheckpointValues& values = {}) {
    const std::vector<CheckpointTensor> all = tensors();
    return SaveCheckpoint(directory,
                          {.parameters = all,
                           .optimizer = optimizer_.get(),
                           .values = values},
                          InAMinute())
        .status();
  }
  absl::Status Load(const std::string& directory) {
    auto checkpoint = Checkpoint::Open(directory);
    if (!checkpoint.ok()) return checkpoint.status();
    return (*checkpoint)->Load(tensors(), optimizer_.get(), InAMinute());
  }

 private:
  TemporaryDirectory scratch_;
  Model model_;
  ReachedRuntime runtime_;  // outlives the optimizer
  std::unique_ptr<OffloadedOptimizer> optimizer_;
};

}  // namespace terrace
