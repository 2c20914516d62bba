// A new checkpoint that a reader would refuse does not take the old one's
// place.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/manifest.h"
#include "checkpoint/save/directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/job.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Publishing : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(job_.ok());
    job_.Step(1);
    ASSERT_TRUE(job_.Save(directory_.path()).ok());
    before_ = directory_.Entries();
    job_.Step(2);
  }

  void ExpectTheOld() {
    EXPECT_EQ(directory_.Entries(), before_);
    auto checkpoint = Checkpoint::Open(directory_.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ((*checkpoint)->step(), 1);
    EXPECT_TRUE((*checkpoint)->Verify().ok());
  }
  // Of a save that is under way: the files that were not there before.
  std::vector<std::string> NewFiles(const std::string& kind) const {
    std::vector<std::string> found;
    for (const std::string& name : directory_.Entries()) {
      if (name.rfind(kind, 0) == 0 &&
          std::find(before_.begin(), before_.end(), name) == before_.end()) {
        found.push_back(directory_.path() + "/" + name);
      }
    }
    return found;
  }

  TemporaryDirectory directory_;
  Job job_{Model::Of({{"w", DType::kFloat32, 5000}}, 3), {}};
  std::vector<std::string> before_;
};

// One that spoils the file that it is written to.
class Spoiler final : public CheckpointElements {
 public:
  explicit Spoiler(std::function<void()> spoil) : spoil_(std::move(spoil)) {}
  absl::Status Read(int64_t, absl::Span<std::byte>) override {
    spoil_();
    return absl::OkStatus();
  }
  absl::Status Write(int64_t, absl::Span<const std::byte>) override {
    return absl::OkStatus();
  }

 private:
  const std::function<void()> spoil_;
};

TEST_F(Publishing, OfAFileThatIsNotWhatWasWrittenIsRefused) {
  const auto save = [this](std::function<void(const std::string&)> spoil) {
    Spoiler spoiler([&] {
      for (const std::string& path : NewFiles("parameters-")) spoil(path);
    });
    std::vector<CheckpointTensor> tensors = job_.tensors();
    tensors.push_back({.name = "last", .shape = {1}, .elements = &spoiler});
    return SaveCheckpoint(
               directory_.path(),
               {.parameters = tensors, .optimizer = &job_.optimizer()},
               InAMinute())
        .status();
  };
  absl::Status status = save([](const std::string& path) {
    const int fd = open(path.c_str(), O_WRONLY);
    EXPECT_EQ(pwrite(fd, "?", 1, 20), 1);  // in its header
    close(fd);
  });
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("not put in place"), HasSubstr("header"),
                    HasSubstr("parameters-")));
  ExpectTheOld();
  status = save([](const std::string& path) {
    std::filesystem::resize_file(path, std::filesystem::file_size(path) + 9);
  });
  EXPECT_FALSE(status.ok());
  ExpectTheOld();
  EXPECT_TRUE(save([](const std::string&) {}).ok());
}

TEST_F(Publishing, OfPartsOfWhichOneWasAlteredIsRefused) {
  {
    auto commit = CheckpointCommit::Begin(directory_.path(), {});
    ASSERT_TRUE(commit.ok()) << commit.status();
    const std::vector<CheckpointTensor> tensors = job_.tensors();
    const auto part = WriteCheckpointPart(
        directory_.path(),
        {.parameters = tensors, .optimizer = &job_.optimizer()},
        CheckpointPart::kParametersAndState, InAMinute());
    ASSERT_TRUE(part.ok()) << part.status();
    const std::vector<std::string> state = NewFiles("optimizer-");
    ASSERT_EQ(state.size(), 1u);
    const int fd = open(state[0].c_str(), O_WRONLY);
    EXPECT_EQ(pwrite(fd, "?", 1, 20), 1);
    close(fd);
    const auto size = (*commit)->Commit({*part});
    EXPECT_TRUE(absl::IsDataLoss(size.status())) << size.status();
    EXPECT_THAT(std::string(size.status().message()), HasSubstr(state[0]));
  }
  ExpectTheOld();
}

TEST_F(Publishing, OfAJsonThatIsTooLongIsRefused) {
  const std::vector<CheckpointTensor> tensors = job_.tensors();
  const auto part = WriteCheckpointPart(
      directory_.path(),
      {.parameters = tensors, .optimizer = &job_.optimizer()},
      CheckpointPart::kParametersAndState, InAMinute());
  ASSERT_TRUE(part.ok()) << part.status();
  const auto manifest = ParseManifest(*part, "part");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  auto directory = CheckpointWriterDirectory::Open(directory_.path());
  ASSERT_TRUE(directory.ok()) << directory.status();
  const absl::Status status = (*directory)->Publish(*manifest, 500);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(directory_.path()), HasSubstr("500")));
  ASSERT_TRUE((*directory)->RemoveLeftovers().ok());
  EXPECT_TRUE(absl::IsNotFound((*directory)->Publish(*manifest)))
      << "its files are gone";
  directory->reset();
  ExpectTheOld();
}

}  // namespace
}  // namespace terrace
