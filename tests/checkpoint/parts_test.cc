// A checkpoint in parts: two optimizers, each of some parameters of one model,
// as on two ranks.
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/job.h"

namespace terrace {
namespace {

using testing::HasSubstr;

using testing::SizeIs;

Model Share(int rank) {
  return rank == 0 ? Model::Of({{"a", DType::kFloat32, 70'001},
                                {"b", DType::kBFloat16, 33'333},
                                {"nothing", DType::kFloat32, 0}},
                               31)
                   : Model::Of({{"c", DType::kFloat16, 50'000},
                                {"d", DType::kFloat32, 1}},
                               32);
}

class Parts : public testing::Test {
 protected:
  void SetUp() override {
    for (int rank = 0; rank < 2; ++rank) {
      shares_[rank] = std::make_unique<Job>(
          Share(rank), Arrangement{.files = true, .budget_bytes = 300 << 10});
      ASSERT_TRUE(shares_[rank]->ok());
      references_.emplace_back(Share(rank), OptimizerOptions());
      Step(rank, 1);
    }
    ASSERT_TRUE(Save().ok());
    saved_ = directory_.Entries();
    ASSERT_THAT(saved_, SizeIs(4));
    Step(1, 2);
  }

  void Step(int rank, int64_t step) {
    shares_[rank]->Step(step);
    references_[rank].Step({}, shares_[rank]->model());
  }

  // All tensors of the model, as this rank says them.
  std::vector<CheckpointTensor> Tensors(int rank) {
    std::vector<CheckpointTensor> all;
    for (int owner = 0; owner < 2; ++owner) {
      for (CheckpointTensor tensor : shares_[owner]->tensors()) {
        if (owner != rank) tensor.optimizer_parameter = kOfAnotherRank;
        all.push_back(std::move(tensor));
      }
    }
    return all;
  }

  absl::StatusOr<std::string> Write(int rank, const std::string& directory) {
    const std::vector<CheckpointTensor> tensors = Tensors(rank);
    return WriteCheckpointPart(
        directory,
        {.parameters = tensors, .optimizer = &shares_[rank]->optimizer()},
        rank == 0 ? CheckpointPart::kParametersAndState
                  : CheckpointPart::kState,
        InAMinute());
  }

  absl::StatusOr<int64_t> Save() {
    auto commit =
        CheckpointCommit::Begin(directory_.path(), {{"seed", int64_t{7}}});
    if (!commit.ok()) return commit.status();
    std::vector<std::string> parts;
    for (const int rank : {1, 0}) {
      auto part = Write(rank, directory_.path());
      if (!part.ok()) return part.status();
      parts.push_back(*std::move(part));
    }
    return (*commit)->Commit(parts);
  }

  // That the checkpoint of SetUp is there, and nothing else.
  void ExpectTheOld() {
    EXPECT_EQ(directory_.Entries(), saved_);
    auto checkpoint = Checkpoint::Open(directory_.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ((*checkpoint)->step(), 1);
    EXPECT_TRUE((*checkpoint)->Verify().ok());
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Job> shares_[2];
  std::vector<ReferenceOptimizer> references_;
  std::vector<std::string> saved_;
};

TEST_F(Parts, MakeACheckpointThatEachShareLoads) {
  const auto size = Save();
  ASSERT_TRUE(size.ok()) << size.status();
  EXPECT_THAT(directory_.Entries(), SizeIs(4));
  auto checkpoint = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->step(), 2);
  EXPECT_EQ((*checkpoint)->size_bytes(), *size);
  EXPECT_EQ((*checkpoint)->values().at("seed"), CheckpointValue(int64_t{7}));
  EXPECT_TRUE((*checkpoint)->Verify().ok());
  const std::vector<int64_t> steps[] = {{1, 1, 1}, {2, 2}};
  for (int rank = 0; rank < 2; ++rank) {
    shares_[rank] = std::make_unique<Job>(Share(rank), Arrangement{});
  }
  for (int rank = 0; rank < 2; ++rank) {
    Job& job = *shares_[rank];
    const absl::Status loaded =
        (*checkpoint)->Load(Tensors(rank), &job.optimizer(), InAMinute());
    ASSERT_TRUE(loaded.ok()) << loaded;
    EXPECT_EQ(references_[rank].Difference(job.model()), "");
    EXPECT_EQ(references_[rank].StateDifference(job.optimizer()), "");
    EXPECT_THAT(job.optimizer().parameter_steps(),
                testing::ElementsAreArray(steps[rank]));
  }
}

TEST_F(Parts, OfOneWholeAreCommittedOrNone) {
  const auto refused = [&](std::vector<int> ranks, const std::string& why) {
    auto commit = CheckpointCommit::Begin(directory_.path(), {});
    ASSERT_TRUE(commit.ok()) << commit.status();
    std::vector<std::string> parts;
    for (const int rank : ranks) {
      parts.push_back(*Write(rank, directory_.path()));
    }
    const auto size = (*commit)->Commit(parts);
    EXPECT_TRUE(absl::IsInvalidArgument(size.status())) << size.status();
    EXPECT_THAT(std::string(size.status().message()), HasSubstr(why));
    commit->reset();
    EXPECT_EQ(directory_.Entries(), saved_);
  };
  refused({}, "none has parameters");
  refused({1}, "none has parameters");
  refused({0}, "none has the state of 'c'");
  refused({0, 1, 0}, "two have parameters");
  refused({0, 1, 1}, "two have the state of 'c'");
  ExpectTheOld();
}

TEST_F(Parts, ThatWereAlteredAreRefused) {
  auto commit = CheckpointCommit::Begin(directory_.path(), {});
  ASSERT_TRUE(commit.ok()) << commit.status();
  std::vector<std::string> parts = {*Write(0, directory_.path()),
                                    *Write(1, directory_.path())};
  parts[1][parts[1].size() / 2] ^= 1;
  const auto size = (*commit)->Commit(parts);
  EXPECT_TRUE(absl::IsDataLoss(size.status())) << size.status();
  EXPECT_THAT(std::string(size.status().message()), HasSubstr("part 1 of 2"));
  commit->reset();
  ExpectTheOld();
}

TEST_F(Parts, MustBeInTheDirectoryOfTheCommit) {
  TemporaryDirectory elsewhere;
  {
    auto commit = CheckpointCommit::Begin(directory_.path(), {});
    ASSERT_TRUE(commit.ok()) << commit.status();
    const std::vector<std::string> parts = {*Write(0, directory_.path()),
                                            *Write(1, elsewhere.path())};
    const auto size = (*commit)->Commit(parts);
    EXPECT_TRUE(absl::IsFailedPrecondition(size.status())) << size.status();
    EXPECT_THAT(std::string(size.status().message()),
                HasSubstr("one directory that all of them see"));
  }
  ExpectTheOld();
  EXPECT_TRUE(
      absl::IsNotFound(Write(1, elsewhere.path() + "/missing").status()));
}

TEST_F(Parts, ThatAreNotCommittedAreRemoved) {
  {
    auto commit = CheckpointCommit::Begin(directory_.path(), {});
    ASSERT_TRUE(commit.ok()) << commit.status();
    ASSERT_TRUE(Write(1, directory_.path()).ok());
    // The part's file, its list and the lock.
    EXPECT_THAT(directory_.Entries(), SizeIs(7));
    // Meanwhile no other save begins there.
    EXPECT_TRUE(absl::IsUnavailable(
        CheckpointCommit::Begin(directory_.path(), {}).status()));
    EXPECT_TRUE(absl::IsUnavailable(shares_[0]->Save(directory_.path())));
  }
  ExpectTheOld();
  // A rank that goes on when the commit is gone: the next save takes it away.
  ASSERT_TRUE(Write(1, directory_.path()).ok());
  EXPECT_THAT(directory_.Entries(), SizeIs(6));
  ASSERT_TRUE(Save().ok());
  EXPECT_THAT(directory_.Entries(), SizeIs(4));
}

TEST_F(Parts, OfAnIncompleteStepAreRefused) {
  Job& job = *shares_[1];
  job.model().DrawGradients(3);
  ASSERT_FALSE(
      job.optimizer().Step({}, job.model().data(), absl::InfinitePast()).ok());
  const auto size = Save();
  EXPECT_TRUE(absl::IsFailedPrecondition(size.status())) << size.status();
  ExpectTheOld();
}

TEST_F(Parts, OfWhichOneFileIsGoneAreNoCheckpoint) {
  for (const std::string& name : saved_) {
    if (name == "checkpoint.json") continue;
    const std::string path = absl::StrCat(directory_.path(), "/", name);
    std::filesystem::rename(path, path + "x");
    const auto opened = Checkpoint::Open(directory_.path());
    EXPECT_TRUE(absl::IsDataLoss(opened.status())) << opened.status();
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr(name));
    std::filesystem::rename(path + "x", path);
  }
  ExpectTheOld();
}

}  // namespace
}  // namespace terrace
