// What can be seen to fail is refused before anything is written or changed.
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/job.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class Refusals : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(job_.ok());
    job_.Step(1);
    ASSERT_TRUE(job_.Save(directory_.path()).ok());
  }

  TemporaryDirectory directory_;
  Job job_{Model::Mixed(11), {}};
};

TEST_F(Refusals, OfAHalfLoadedOptimizerComeBeforeAnythingIsWritten) {
  { ASSERT_TRUE(job_.optimizer().OpenStateWriter(InAMinute()).ok()); }
  const std::string nothing = directory_.path() + "/nothing";
  const absl::Status saved = job_.Save(nothing);
  EXPECT_TRUE(absl::IsFailedPrecondition(saved)) << saved;
  EXPECT_THAT(std::string(saved.message()), HasSubstr("ended half-way"));
  EXPECT_FALSE(std::filesystem::exists(nothing));
  const std::vector<CheckpointTensor> tensors = job_.tensors();
  const auto part = WriteCheckpointPart(
      nothing, {.parameters = tensors, .optimizer = &job_.optimizer()},
      CheckpointPart::kParametersAndState, InAMinute());
  EXPECT_TRUE(absl::IsFailedPrecondition(part.status())) << part.status();

  ASSERT_TRUE(job_.Load(directory_.path()).ok());
  EXPECT_TRUE(job_.Save(nothing).ok());
}

TEST_F(Refusals, OfALoadAreKnownBeforeIt) {
  const auto checkpoint = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto fits = [&](const std::vector<CheckpointTensor>& tensors,
                        const OffloadedOptimizer* optimizer) {
    return (*checkpoint)->Fits(tensors, optimizer);
  };
  Job other(Model::Mixed(12), {});
  ASSERT_TRUE(other.ok());
  const Model before = other.model();
  const std::vector<CheckpointTensor> good = other.tensors();
  EXPECT_EQ(fits(good, &other.optimizer()), absl::OkStatus());
  EXPECT_EQ(fits(good, nullptr), absl::OkStatus());

  std::vector<CheckpointTensor> bad = good;
  bad[0].shape.push_back(1);
  const absl::Status shape = fits(bad, &other.optimizer());
  EXPECT_TRUE(absl::IsInvalidArgument(shape)) << shape;
  EXPECT_THAT(std::string(shape.message()), HasSubstr("of another model"));
  bad = good;
  bad[0].data = nullptr;
  EXPECT_EQ(fits(bad, &other.optimizer()), absl::OkStatus());
  const absl::Status address =
      (*checkpoint)
          ->Load(bad, &other.optimizer(), absl::Now() + absl::Minutes(1));
  EXPECT_TRUE(absl::IsInvalidArgument(address)) << address;
  EXPECT_THAT(std::string(address.message()), HasSubstr("has no address"));
  bad = good;
  bad[0].optimizer_parameter = -1;
  EXPECT_TRUE(absl::IsInvalidArgument(fits(bad, &other.optimizer())));

  EXPECT_EQ(other.optimizer().step(), 0);
  for (size_t i = 0; i < before.parameters().size(); ++i) {
    EXPECT_TRUE(before.parameters()[i].values.SameBits(
        other.model().parameters()[i].values));
  }
}

}  // namespace
}  // namespace terrace
