// terrace/optimizer.h: what a child of fork() has of its parent's optimizer.
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gtest/gtest.h"
#include "terrace/optimizer.h"
#include "tests/optimizer/training.h"
#include "tests/support/door/runtime_door.h"
#include "tests/support/inline_executor.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

using absl::IsCancelled;
using Kind = OffloadedOptimizer::StateKind;

OptimizerOptions Clipped() {
  OptimizerOptions options;
  options.chunk_bytes = 64 << 10;
  options.max_gradient_norm = 1;  // a pass over the gradients on the executor
  return options;
}

// Over a runtime with threads.
class ForkedOptimizer : public testing::Test {
 protected:
  ForkedOptimizer()
      : model_(Model::Of(
            {{"a", DType::kBFloat16, 60'013}, {"b", DType::kFloat32, 40'009}},
            41)),
        reference_(model_, Clipped()) {
    Options options;
    options.host_budget_bytes = 512 << 10;
    options.memory_paths = 1;
    options.memory_path_bytes = 16 << 20;
    options.threads = 2;
    options.huge_pages = HugePages::kOff;
    runtime_ = *Reach(options);
    optimizer_ =
        *OffloadedOptimizer::Create(*runtime_, model_.specs(), Clipped());
  }

  absl::Status Step(Time deadline) {
    return optimizer_->Step({}, model_.data(), deadline);
  }
  void StepBoth(int64_t step) {
    model_.DrawGradients(step);
    reference_.Step({}, model_);
    const absl::Status status = Step(Soon());
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(reference_.Difference(model_), "");
  }

  Model model_;
  ReferenceOptimizer reference_;
  ReachedRuntime runtime_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;
};

TEST_F(ForkedOptimizer, EveryCallIsCancelledAtOnce) {
  StepBoth(1);
  model_.DrawGradients(2);
  const std::vector<ParameterData> data = model_.data();
  std::vector<float> some(5);
  EXPECT_TRUE(InChild([&] {
    return IsCancelled(Step(absl::InfiniteFuture())) &&
           IsCancelled(optimizer_->Start({}, data));
  }));
  EXPECT_TRUE(InChild([&] {
    return IsCancelled(optimizer_->AddParameters({{"c"}})) &&
           IsCancelled(optimizer_->AddParameters({})) &&
           IsCancelled(optimizer_->OpenStateReader().status()) &&
           IsCancelled(optimizer_->ReadState(0, Kind::kMaster, 0,
                                             absl::MakeSpan(some), Soon())) &&
           IsCancelled(
               optimizer_->WriteState(0, Kind::kMaster, 0, some, Soon())) &&
           IsCancelled(optimizer_->OpenStateWriter(Soon()).status()) &&
           IsCancelled(optimizer_->SetSteps(0, std::vector<int64_t>(2))) &&
           IsCancelled(optimizer_->Reset(Soon()));
  }));
  EXPECT_TRUE(InChild([&] {
    return IsCancelled(
        OffloadedOptimizer::Create(*runtime_, model_.specs(), Clipped())
            .status());
  }));
  StepBoth(2);
}

TEST_F(ForkedOptimizer, AReaderOfTheParentsReadsNothing) {
  StepBoth(1);
  std::vector<float> all(60'013), again(60'013);
  {
    auto reader = optimizer_->OpenStateReader();
    ASSERT_TRUE(reader.ok()) << reader.status();
    const auto read = [&](std::vector<float>& to, int64_t from, size_t count) {
      return (*reader)->Read(
          0, from, {.second_moment = absl::MakeSpan(to).subspan(0, count)},
          Soon());
    };
    ASSERT_TRUE(read(all, 0, all.size()).ok());
    // The last is in memory, the first is not.
    EXPECT_TRUE(InChild([&] { return IsCancelled(read(again, 60'000, 13)); }));
    EXPECT_TRUE(InChild([&] { return IsCancelled(read(again, 0, 13)); }));
    EXPECT_TRUE(InChild([&] {
      reader->reset();
      optimizer_.reset();
      runtime_.runtime.reset();
      return true;
    }));
    ASSERT_TRUE(read(again, 0, again.size()).ok());
    EXPECT_EQ(again, all);
  }
  StepBoth(2);
}

TEST_F(ForkedOptimizer, AWriterOfTheParentsWritesNothing) {
  const std::vector<float> values(60'013, 0.25f);
  auto writer = optimizer_->OpenStateWriter(Soon());
  ASSERT_TRUE(writer.ok()) << writer.status();
  const auto write = [&](int64_t from) {
    return (*writer)->Write(
        0, from, {.master = absl::MakeConstSpan(values).subspan(from)}, Soon());
  };
  ASSERT_TRUE(write(0).ok());
  const std::vector<int64_t> steps = {1, 1};
  EXPECT_TRUE(InChild([&] {
    return IsCancelled(write(60'000)) && IsCancelled(write(0)) &&
           IsCancelled((*writer)->Commit(1, steps));
  }));
  EXPECT_TRUE(InChild([&] {
    writer->reset();
    optimizer_.reset();
    runtime_.runtime.reset();
    return true;
  }));
  ASSERT_TRUE((*writer)->Commit(1, steps).ok());
  std::vector<float> read(60'013);
  ASSERT_TRUE(
      optimizer_->ReadState(0, Kind::kMaster, absl::MakeSpan(read), Soon())
          .ok());
  EXPECT_EQ(read, values);
}

TEST(ForkedInAStep, WhatIsIncompleteIsTheParentsToFinish) {
  if (runtime_door != nullptr) GTEST_SKIP() << kNeedsMap;
  Training training(Model::Mixed(43), Clipped(), 2, {});
  training.model().DrawGradients(1);
  training.map().set_fault([](const MapRuntime::Call& call) {
    return call.kind == MapRuntime::CallKind::kReady ? absl::UnknownError("EIO")
                                                     : absl::OkStatus();
  });
  ASSERT_FALSE(training.Step().ok());
  training.map().set_fault(nullptr);
  ASSERT_TRUE(training.optimizer().incomplete());
  EXPECT_TRUE(InChild([&] { return IsCancelled(training.Step()); }));
  training.StepBoth(1);
}

// Of a child that is made while kernels run: here they wait to be turned.
TEST(ForkedInAStep, TheChildNeitherWaitsForKernelsNorKeepsThem) {
  for (const bool clipped : {true, false}) {
    SCOPED_TRACE(clipped);
    InlineExecutor executor;
    MapRuntime runtime({}, SystemClock(), executor);
    Model model = Model::Mixed(42);
    OptimizerOptions options = Clipped();
    if (!clipped) options.max_gradient_norm = 0;
    ReferenceOptimizer reference(model, options);
    auto optimizer =
        *OffloadedOptimizer::Create(runtime, model.specs(), options);
    model.DrawGradients(1);
    reference.Step({}, model);
    const std::vector<ParameterData> data = model.data();
    ASSERT_TRUE(optimizer->Start({}, data).ok());
    ASSERT_FALSE(optimizer->Advance());
    EXPECT_TRUE(InChild([&] {
      return optimizer->Advance() && IsCancelled(optimizer->result());
    }));
    EXPECT_TRUE(InChild([&] {
      optimizer.reset();
      return true;
    }));
    while (!optimizer->Advance()) executor.RunAll();
    EXPECT_TRUE(optimizer->result().ok()) << optimizer->result();
    EXPECT_EQ(reference.Difference(model), "");
  }
}

}  // namespace
}  // namespace terrace
