// An optimizer over a runtime that a test can hold back and make fail, for
// tests of steps whose updates go on.
#pragma once

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>
#include <torch/serialize/archive.h>

#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/pool_executor.h"
#include "tests/libtorch/torch_fixture.h"
#include "tests/support/map_runtime.h"

namespace terrace {

// What begins with the first transfer of a runtime waits until it is opened, by
// Open() or the end of the gate.
class Gate {
 public:
  explicit Gate(MapRuntime& runtime) {
    runtime.set_fault([opened = opened_](const MapRuntime::Call& call) {
      if (call.kind == MapRuntime::CallKind::kReady) opened.wait();
      return absl::OkStatus();
    });
  }
  ~Gate() { Open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void Open() {
    if (!std::exchange(is_open_, true)) opens_.set_value();
  }

 private:
  bool is_open_ = false;
  std::promise<void> opens_;
  std::shared_future<void> opened_ = opens_.get_future().share();
};

// Parameters of all kinds in three groups, the last one out of order, and their
// optimizer. Two of one dtype begin with the same values.
class Trained {
 public:
  explicit Trained(bool overlap, at::ScalarType dtype = at::kFloat,
                   OptimizerOptions options = SmallChunks())
      : executor_(*MakePoolExecutor(2, {})),
        runtime_({.budget_bytes = 512 << 10}, SystemClock(), *executor_),
        parameters_(MakeParameters(dtype)) {
    at::set_num_threads(1);  // tests share the machine
    at::manual_seed(9);
    parameters_.push_back(
        at::randn({60, 80}).to(dtype).t().set_requires_grad(true));
    auto made = OffloadedAdamW::Create(runtime_, Groups(parameters_), options);
    EXPECT_TRUE(made.ok()) << made.status();
    optimizer_ = *std::move(made);
    optimizer_->set_overlap(overlap);
  }

  // The same groups of other tensors.
  static std::vector<::torch::optim::OptimizerParamGroup> Groups(
      const std::vector<at::Tensor>& tensors) {
    using ::torch::optim::AdamWOptions;
    std::vector<::torch::optim::OptimizerParamGroup> groups;
    const auto add = [&](size_t first, size_t end, const AdamWOptions& of) {
      groups.emplace_back(std::vector<at::Tensor>(
                              tensors.begin() + static_cast<ptrdiff_t>(first),
                              tensors.begin() + static_cast<ptrdiff_t>(end)),
                          std::make_unique<AdamWOptions>(of));
    };
    add(0, 3, AdamWOptions(1e-3));
    add(3, 5, AdamWOptions(3e-3).betas({0.8, 0.99}).weight_decay(0.2));
    add(5, 7, AdamWOptions(1e-2).eps(1e-6));
    return groups;
  }
  void Draw(int64_t step) { DrawGradients(step, parameters_); }
  absl::Status Step(int64_t step, const StepArguments& arguments = {}) {
    Draw(step);
    return optimizer_->TryStep(arguments);
  }
  // Every call from `call` on fails, counted from now.
  void Fail(int64_t call) {
    runtime_.set_fault(
        [from = runtime_.calls(), call](const MapRuntime::Call& now) {
          return now.index - from >= call
                     ? absl::UnknownError("read failed: path 1: EIO")
                     : absl::OkStatus();
        });
  }
  void Mend() { runtime_.set_fault(nullptr); }
  void ExpectParametersOf(const Trained& other) const {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      EXPECT_TRUE(SameBits(parameters_[i], other.parameters_[i])) << i;
    }
  }
  void ExpectStateOf(Trained& other) {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      SCOPED_TRACE(i);
      const auto ours = optimizer_->StateOf(parameters_[i]);
      const auto theirs = other.optimizer_->StateOf(other.parameters_[i]);
      ASSERT_TRUE(ours.ok() && theirs.ok()) << ours.status() << theirs.status();
      EXPECT_EQ(ours->step, theirs->step);
      EXPECT_TRUE(SameBits(ours->exp_avg, theirs->exp_avg));
      EXPECT_TRUE(SameBits(ours->exp_avg_sq, theirs->exp_avg_sq));
      ASSERT_EQ(ours->master.defined(), theirs->master.defined());
      if (ours->master.defined()) {
        EXPECT_TRUE(SameBits(ours->master, theirs->master));
      }
    }
  }
  std::string Save() const {
    ::torch::serialize::OutputArchive archive;
    optimizer_->save(archive);
    std::stringstream stream;
    archive.save_to(stream);
    return stream.str();
  }
  void Load(const std::string& saved) {
    std::stringstream stream(saved);
    ::torch::serialize::InputArchive archive;
    archive.load_from(stream);
    optimizer_->load(archive);
  }

  std::vector<at::Tensor>& parameters() { return parameters_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  MapRuntime& runtime() { return runtime_; }
  OffloadedAdamW& optimizer() { return *optimizer_; }
  void DestroyOptimizer() { optimizer_.reset(); }

 private:
  std::unique_ptr<Executor> executor_;
  MapRuntime runtime_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<OffloadedAdamW> optimizer_;
};

// What an operation that takes the tensor throws; nothing: it does not.
inline std::string WhatThrows(const at::Tensor& tensor) {
  try {
    static_cast<void>(tensor.detach().sum());
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace terrace
