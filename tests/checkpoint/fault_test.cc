// A runtime that fails, each of its calls in turn, while a checkpoint is saved
// or loaded.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/pool_executor.h"
#include "tests/checkpoint/job.h"
#include "tests/support/map_runtime.h"

namespace terrace {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

// A model and its optimizer over plain memory that can be told to fail.
class FaultyJob {
 public:
  explicit FaultyJob(uint64_t seed)
      : model_(Model::Mixed(seed)),
        executor_(*MakePoolExecutor(1, {})),
        runtime_({.budget_bytes = 300 << 10}, SystemClock(), *executor_) {
    OptimizerOptions options;
    options.chunk_bytes = 64 << 10;
    optimizer_ = *OffloadedOptimizer::Create(runtime_, model_.specs(), options);
  }
  ~FaultyJob() { EXPECT_THAT(runtime_.violations(), IsEmpty()); }

  Model& model() { return model_; }
  OffloadedOptimizer& optimizer() { return *optimizer_; }

  void Step(int64_t step) {
    model_.DrawGradients(step);
    const absl::Status status =
        optimizer_->Step({}, model_.data(), InAMinute());
    EXPECT_TRUE(status.ok()) << status;
  }
  // Fails the call of that number from now on, once.
  void FailCall(int64_t number, absl::Status status) {
    const int64_t at = runtime_.calls() + number;
    runtime_.set_fault([at, status](const MapRuntime::Call& call) {
      return call.index == at ? status : absl::OkStatus();
    });
  }
  void FailNothing() { runtime_.set_fault(nullptr); }

  absl::Status Save(const std::string& directory) {
    const std::vector<CheckpointTensor> tensors = TensorsOf(model_);
    return SaveCheckpoint(directory,
                          {.parameters = tensors, .optimizer = &optimizer()},
                          InAMinute())
        .status();
  }
  absl::Status Load(const std::string& directory) {
    auto checkpoint = Checkpoint::Open(directory);
    if (!checkpoint.ok()) return checkpoint.status();
    return (*checkpoint)->Load(TensorsOf(model_), &optimizer(), InAMinute());
  }

 private:
  Model model_;
  std::unique_ptr<Executor> executor_;
  MapRuntime runtime_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;
};

TEST(FaultsOfTheRuntime, LeaveTheOldCheckpointAndSayWhy) {
  FaultyJob job(21);
  TemporaryDirectory directory;
  job.Step(1);
  ASSERT_TRUE(job.Save(directory.path()).ok());
  const auto before = directory.Entries();
  job.Step(2);
  int64_t call = 0;
  while (true) {
    job.FailCall(call++, absl::UnavailableError("the disk is away"));
    const absl::Status status = job.Save(directory.path());
    if (status.ok()) break;
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(directory.Entries(), before);
    ASSERT_LT(call, 10'000);
  }
  EXPECT_GT(call, 20);
  job.FailNothing();
  auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ((*checkpoint)->step(), 2);
  EXPECT_TRUE((*checkpoint)->Verify().ok());
  // The run itself is none the worse.
  ReferenceOptimizer reference(Model::Mixed(21), {});
  Model model = Model::Mixed(21);
  for (int step = 1; step <= 3; ++step) {
    model.DrawGradients(step);
    reference.Step({}, model);
  }
  job.Step(3);
  EXPECT_EQ(reference.Difference(job.model()), "");
  EXPECT_EQ(reference.StateDifference(job.optimizer()), "");
}

TEST(FaultsOfTheRuntime, LeaveNothingHalfLoaded) {
  ReferenceOptimizer reference(Model::Mixed(22), {});
  TemporaryDirectory directory;
  {
    FaultyJob job(22);
    job.Step(1);
    reference.Step({}, job.model());
    ASSERT_TRUE(job.Save(directory.path()).ok());
  }
  FaultyJob job(1022);
  job.Step(1);
  const Model before = job.model();
  const ReferenceOptimizer anew(before, {});
  int64_t call = 0;
  while (true) {
    job.FailCall(call++, absl::UnavailableError("the disk is away"));
    const absl::Status status = job.Load(directory.path());
    job.FailNothing();
    if (status.ok()) break;
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    // As after Reset, and the parameters as they were.
    EXPECT_EQ(job.optimizer().step(), 0);
    for (size_t i = 0; i < before.parameters().size(); ++i) {
      EXPECT_TRUE(before.parameters()[i].values.SameBits(
          job.model().parameters()[i].values));
    }
    if (call % 8 == 1) {
      EXPECT_EQ(anew.StateDifference(job.optimizer()), "");
    }
    ASSERT_LT(call, 10'000);
  }
  EXPECT_GT(call, 20);
  EXPECT_EQ(reference.Difference(job.model()), "");
  EXPECT_EQ(reference.StateDifference(job.optimizer()), "");
  EXPECT_EQ(job.optimizer().step(), 1);
}

TEST(FaultsOfTheRuntime, ThatLoseStateAreSaidAndStay) {
  FaultyJob job(23);
  TemporaryDirectory directory;
  job.Step(1);
  ASSERT_TRUE(job.Save(directory.path()).ok());
  job.FailCall(5, absl::DataLossError("chunk 3 is gone"));
  const absl::Status status = job.Save(directory.path());
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(directory.Entries(), SizeIs(3));
  job.FailNothing();
  auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_TRUE((*checkpoint)->Verify().ok());
  FaultyJob another(1023);
  const absl::Status loaded = another.Load(directory.path());
  EXPECT_TRUE(loaded.ok()) << loaded;
}

}  // namespace
}  // namespace terrace
