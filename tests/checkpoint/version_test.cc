// Checkpoints of earlier versions of the format, as they were written then:
// version_1 was saved after two steps of the model below.
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/foreign_reader.h"
#include "tests/checkpoint/job.h"

namespace terrace {
namespace {

Model OfVersion1() {
  return Model::Of({{"w", DType::kFloat32, 24},
                    {"h", DType::kBFloat16, 5},
                    {"s", DType::kFloat16, 1},
                    {"none", DType::kFloat32, 0}},
                   6725);
}

TEST(ACheckpointOfVersion1, LoadsAndIsReplaced) {
  TemporaryDirectory directory;
  std::filesystem::copy(VERSION_1, directory.path());
  Model model = OfVersion1();
  ReferenceOptimizer reference(model, {});
  for (int step = 1; step <= 2; ++step) {
    model.DrawGradients(step);
    reference.Step({}, model);
  }
  Job job(OfVersion1(), {});
  ASSERT_TRUE(job.ok());
  const absl::Status loaded = job.Load(directory.path());
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_EQ(reference.Difference(job.model()), "");
  EXPECT_EQ(reference.StateDifference(job.optimizer()), "");
  EXPECT_EQ(job.optimizer().step(), 2);

  auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE((*checkpoint)->Verify().ok());
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  const CheckpointValues values = {{"count", int64_t{-7}},
                                   {"third", 1.0 / 3},
                                   {"text", std::string("caf\xc3\xa9 \"x\"\n")},
                                   {"bytes", CheckpointBytes{bytes}},
                                   {"", std::string()}};
  EXPECT_EQ((*checkpoint)->values(), values);

  ASSERT_TRUE(job.Save(directory.path(), values).ok());
  EXPECT_THAT(directory.Entries(), testing::SizeIs(3));
  const auto json = nlohmann::json::parse(
      ReadAll(directory.path() + "/checkpoint.json"))["checkpoint"];
  EXPECT_EQ(json["version"], 2);
}

}  // namespace
}  // namespace terrace
