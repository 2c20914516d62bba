// Parameters that were frozen when a checkpoint was saved, or are when it is
// loaded.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/job.h"

namespace terrace {
namespace {

using Kind = OffloadedOptimizer::StateKind;

class FrozenParameter : public testing::Test {
 protected:
  static Model OfTwo() {
    return Model::Of(
        {{"first", DType::kFloat32, 10007}, {"late", DType::kBFloat16, 3001}},
        5);
  }
  static Model WithoutTheLast(const Model& model) {
    Model fewer = model;
    fewer.parameters().pop_back();
    return fewer;
  }
  TemporaryDirectory directory_;
};

TEST_F(FrozenParameter, HasNoStateAfterALoadIntoAnOptimizerOfAll) {
  Model model = OfTwo();
  Job fewer(WithoutTheLast(model), {});
  ASSERT_TRUE(fewer.ok());
  fewer.Step(1);
  model.parameters()[0] = fewer.model().parameters()[0];
  std::vector<CheckpointTensor> tensors = TensorsOf(model);
  tensors[1].optimizer_parameter = -1;
  const auto saved = SaveCheckpoint(
      directory_.path(),
      {.parameters = tensors, .optimizer = &fewer.optimizer()}, InAMinute());
  ASSERT_TRUE(saved.ok()) << saved.status();

  Job loaded(OfTwo(), {});
  ASSERT_TRUE(loaded.ok());
  loaded.Step(2);  // what it has is forgotten
  const absl::Status status = loaded.Load(directory_.path());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(loaded.optimizer().parameter_steps(), testing::ElementsAre(1, 0));
  EXPECT_FALSE(loaded.optimizer().HasState(1, Kind::kFirstMoment));
  // And the one that has goes on as the one that was saved.
  fewer.Step(3);
  loaded.Step(3);
  EXPECT_TRUE(loaded.model().parameters()[0].values.SameBits(
      fewer.model().parameters()[0].values));
}

TEST_F(FrozenParameter, ThatNeverWasSteppedMayBeMissingFromTheOptimizer) {
  Job all(OfTwo(), {});
  ASSERT_TRUE(all.ok());
  all.model().parameters()[1].has_gradient = false;
  all.Step(1);
  ASSERT_TRUE(all.Save(directory_.path()).ok());

  Model model = OfTwo();
  Job fewer(WithoutTheLast(model), {});
  ASSERT_TRUE(fewer.ok());
  std::vector<CheckpointTensor> tensors = TensorsOf(model);
  tensors[1].optimizer_parameter = -1;
  auto checkpoint = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const absl::Status status =
      (*checkpoint)->Load(tensors, &fewer.optimizer(), InAMinute());
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(fewer.optimizer().parameter_steps(), testing::ElementsAre(1));
}

}  // namespace
}  // namespace terrace
