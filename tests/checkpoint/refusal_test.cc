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

}  // namespace
}  // namespace terrace
