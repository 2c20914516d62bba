// What a save reads from the tiers and what a load writes there: every chunk
// once, however small the parameters and whatever their order.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/job.h"

namespace terrace {
namespace {

// Large ones that lie across chunks, between them small ones that share one.
Model ManyOf(DType dtype) {
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < 12; ++i) {
    const std::string block = absl::StrCat("block.", i);
    specs.push_back({block + ".weight", dtype, 30'011 + i, 0});
    specs.push_back({block + ".bias", dtype, 96, 1});
    specs.push_back({block + ".norm", dtype, 5, 1});
  }
  return Model::Of(std::move(specs), 3);
}

class SaveReads : public testing::TestWithParam<DType> {};

TEST_P(SaveReads, EveryChunkOnce) {
  Job job(ManyOf(GetParam()), {.files = true,
                               .paths = 2,
                               .budget_bytes = 400 << 10,
                               .chunk_bytes = 64 << 10});
  ASSERT_TRUE(job.ok());
  job.Step(1);
  job.Step(2);
  std::vector<CheckpointTensor> tensors = job.tensors();
  std::reverse(tensors.begin(), tensors.end());
  TemporaryDirectory directory;
  const int64_t before = job.stats().bytes_read();
  const auto saved = SaveCheckpoint(
      directory.path(), {.parameters = tensors, .optimizer = &job.optimizer()},
      InAMinute());
  ASSERT_TRUE(saved.ok()) << saved.status();
  const int64_t read = job.stats().bytes_read() - before;
  const OptimizerPlan& plan = job.optimizer().plan();
  RecordProperty("read_per_mille",
                 std::to_string(1000 * read / plan.disk_bytes));
  EXPECT_LE(read, plan.disk_bytes);
  // All but what the budget holds had to be.
  EXPECT_GE(read, plan.state_bytes - (400 << 10));
}

INSTANTIATE_TEST_SUITE_P(DTypes, SaveReads,
                         testing::Values(DType::kFloat32, DType::kBFloat16));

struct Load {
  const char* name;
  std::vector<DType> dtypes;  // of the parameters, in turn
  int64_t chunk_bytes = 64 << 10;
  int64_t budget_bytes = 400 << 10;
  int groups = 12;         // of a large one and small ones
  int64_t count = 30'011;  // of the large ones
};

class LoadWrites : public testing::TestWithParam<Load> {
 protected:
  Model ModelOfCase() {
    std::vector<ParameterSpec> specs;
    for (int i = 0; i < GetParam().groups; ++i) {
      for (const int64_t count :
           {GetParam().count + i, int64_t{96}, int64_t{5}, int64_t{0}}) {
        specs.push_back(
            {.name = absl::StrCat("parameter", specs.size()),
             .dtype =
                 GetParam().dtypes[specs.size() % GetParam().dtypes.size()],
             .count = count});
      }
    }
    return Model::Of(std::move(specs), 4);
  }
  std::unique_ptr<Job> MakeJob() {
    return std::make_unique<Job>(
        ModelOfCase(), Arrangement{.files = true,
                                   .paths = 2,
                                   .budget_bytes = GetParam().budget_bytes,
                                   .chunk_bytes = GetParam().chunk_bytes});
  }
};

TEST_P(LoadWrites, EveryChunkOnceAndReadsNone) {
  TemporaryDirectory directory;
  {
    const auto job = MakeJob();
    ASSERT_TRUE(job->ok());
    job->Step(1);
    ASSERT_TRUE(job->Save(directory.path()).ok());
  }
  const auto job = MakeJob();
  ASSERT_TRUE(job->ok());
  const OptimizerPlan plan = job->optimizer().plan();
  ASSERT_LT(GetParam().budget_bytes, plan.state_bytes / 2);
  std::vector<CheckpointTensor> tensors = job->tensors();
  std::reverse(tensors.begin(), tensors.end());
  auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const absl::Status loaded =
      (*checkpoint)->Load(tensors, &job->optimizer(), InAMinute());
  ASSERT_TRUE(loaded.ok()) << loaded;
  const Stats stats = job->End();
  RecordProperty(
      "written_per_mille",
      std::to_string(1000 * stats.bytes_written() / plan.state_bytes));
  EXPECT_EQ(stats.bytes_read(), 0);
  EXPECT_LE(stats.bytes_written(), plan.disk_bytes);
  EXPECT_GE(stats.bytes_written(), plan.state_bytes - GetParam().budget_bytes);
}

// The two orders of blocks of 4 MiB and chunks, and chunks of several dtypes
// that are filled by turns.
INSTANTIATE_TEST_SUITE_P(
    Cases, LoadWrites,
    testing::Values(Load{"fp32", {DType::kFloat32}},
                    Load{"bf16", {DType::kBFloat16}},
                    Load{"bf16ChunksAcrossBlocks",
                         {DType::kBFloat16},
                         8 << 20,
                         12 << 20,
                         2,
                         1'200'011},
                    Load{"byTurns",
                         {DType::kBFloat16, DType::kFloat32, DType::kFloat16}}),
    [](const auto& load) { return std::string(load.param.name); });

TEST(StateReading, HoldsOffWhatChangesTheState) {
  Job job(ManyOf(DType::kBFloat16), {});
  ASSERT_TRUE(job.ok());
  job.Step(1);
  OffloadedOptimizer& optimizer = job.optimizer();
  std::vector<float> some(5, 1.0f), other(4);
  {
    auto reader = optimizer.OpenStateReader();
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_TRUE(absl::IsFailedPrecondition(
        optimizer.Step({}, job.model().data(), InAMinute())));
    EXPECT_TRUE(absl::IsFailedPrecondition(optimizer.Reset(InAMinute())));
    EXPECT_TRUE(absl::IsFailedPrecondition(optimizer.WriteState(
        0, OffloadedOptimizer::StateKind::kMaster, 0, some, InAMinute())));
    EXPECT_TRUE(
        absl::IsFailedPrecondition(optimizer.OpenStateReader().status()));
    EXPECT_TRUE(absl::IsInvalidArgument(
        (*reader)->Read(0, 0,
                        {.master = absl::MakeSpan(some),
                         .second_moment = absl::MakeSpan(other)},
                        InAMinute())));
    EXPECT_TRUE(
        (*reader)
            ->Read(2, 0, {.first_moment = absl::MakeSpan(some)}, InAMinute())
            .ok());
  }
  EXPECT_TRUE(optimizer.HasState(2, OffloadedOptimizer::StateKind::kMaster));
  job.Step(2);
  ASSERT_TRUE(optimizer.Reset(InAMinute()).ok());
  EXPECT_FALSE(optimizer.HasState(2, OffloadedOptimizer::StateKind::kMaster));
  EXPECT_FALSE(optimizer.HasState(99, OffloadedOptimizer::StateKind::kMaster));
}

}  // namespace
}  // namespace terrace
