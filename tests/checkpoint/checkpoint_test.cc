// Saving and loading by their contract: values, what does not fit, what stays
// when it fails.
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/job.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

TEST(CheckpointValuesOf, EveryKindComeBackAsTheyWere) {
  std::string all_bytes;
  for (int i = 0; i < 256; ++i) all_bytes.push_back(static_cast<char>(i));
  const CheckpointValues values = {
      {"least", std::numeric_limits<int64_t>::min()},
      {"most", std::numeric_limits<int64_t>::max()},
      {"zero", -0.0},
      {"third", 1.0 / 3},
      {"tiny", std::numeric_limits<double>::denorm_min()},
      {"largest", std::numeric_limits<double>::max()},
      {"infinite", -std::numeric_limits<double>::infinity()},
      {"rng", CheckpointBytes{all_bytes}},
      {"no bytes", CheckpointBytes{}},
      {"text \xc3\xa9", std::string("a \"quoted\" \\ line\n\xe2\x82\xac")},
      {"", std::string()},
  };
  TemporaryDirectory directory;
  CheckpointContents contents;
  contents.values = values;
  contents.values["nan"] = std::nan("");
  const auto saved = SaveCheckpoint(directory.path(), contents, InAMinute());
  ASSERT_TRUE(saved.ok()) << saved.status();
  auto opened = Checkpoint::Open(directory.path());
  ASSERT_TRUE(opened.ok()) << opened.status();
  CheckpointValues read = (*opened)->values();
  EXPECT_TRUE(std::isnan(std::get<double>(read.at("nan"))));
  EXPECT_TRUE(std::signbit(std::get<double>(read.at("zero"))));
  read.erase("nan");
  EXPECT_EQ(read, values);
  EXPECT_FALSE((*opened)->has_optimizer());
  EXPECT_EQ((*opened)->step(), 0);
  EXPECT_THAT((*opened)->parameters(), IsEmpty());
}

TEST(SavedTexts, MustBeUtf8) {
  TemporaryDirectory directory;
  const auto refused =
      SaveCheckpoint(directory.path(),
                     {.values = {{"text", std::string("\xff")}}}, InAMinute());
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
  EXPECT_TRUE(directory.empty());
}

class Checkpoints : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(job_.ok());
    job_.Step(1);
    ASSERT_TRUE(job_.Save(directory_.path()).ok());
    saved_ = job_.model();
  }

  // The checkpoint of the first step, and nothing else.
  void ExpectIntact() {
    EXPECT_THAT(directory_.Entries(), SizeIs(3));
    Job resumed(Model::Mixed(99), {});
    ASSERT_TRUE(resumed.ok());
    const absl::Status loaded = resumed.Load(directory_.path());
    ASSERT_TRUE(loaded.ok()) << loaded;
    EXPECT_EQ(resumed.optimizer().step(), 1);
    for (size_t i = 0; i < saved_.parameters().size(); ++i) {
      EXPECT_TRUE(resumed.model().parameters()[i].values.SameBits(
          saved_.parameters()[i].values));
    }
  }
  // Loads these into the job; what that returns, after having seen that
  // nothing was changed.
  absl::Status LoadRefused(const std::vector<CheckpointTensor>& tensors) {
    const Model before = job_.model();
    auto opened = Checkpoint::Open(directory_.path());
    EXPECT_TRUE(opened.ok()) << opened.status();
    const absl::Status status =
        (*opened)->Load(tensors, &job_.optimizer(), InAMinute());
    EXPECT_EQ(job_.optimizer().step(), 1);
    for (size_t i = 0; i < before.parameters().size(); ++i) {
      EXPECT_TRUE(before.parameters()[i].values.SameBits(
          job_.model().parameters()[i].values));
    }
    return status;
  }

  TemporaryDirectory directory_;
  Job job_{Model::Mixed(11), {}};
  Model saved_;
};

TEST_F(Checkpoints, AreReplacedWholeAndLeaveNothingOfTheOld) {
  const auto first = directory_.Entries();
  job_.Step(2);
  ASSERT_TRUE(job_.Save(directory_.path()).ok());
  const auto second = directory_.Entries();
  EXPECT_THAT(second, SizeIs(3));
  EXPECT_EQ(first.front(), "checkpoint.json");
  EXPECT_EQ(second.front(), "checkpoint.json");
  EXPECT_NE(first[1], second[1]);
  EXPECT_NE(first[2], second[2]);
  auto opened = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ((*opened)->step(), 2);
}

TEST_F(Checkpoints, ThatAreOpenOutliveTheNextSave) {
  auto opened = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(opened.ok());
  job_.Step(2);
  ASSERT_TRUE(job_.Save(directory_.path()).ok());
  EXPECT_TRUE((*opened)->Verify().ok());
  Job resumed(Model::Mixed(99), {});
  const absl::Status loaded =
      (*opened)->Load(resumed.tensors(), &resumed.optimizer(), InAMinute());
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_EQ(resumed.optimizer().step(), 1);
  EXPECT_TRUE(resumed.model().parameters()[0].values.SameBits(
      saved_.parameters()[0].values));
}

TEST_F(Checkpoints, AlsoLoadWithoutAnOptimizer) {
  Model model = Model::Mixed(99);
  std::vector<CheckpointTensor> tensors = TensorsOf(model);
  auto opened = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(opened.ok());
  EXPECT_THAT((*opened)->parameters(), SizeIs(12));
  ASSERT_TRUE((*opened)->Load(tensors, nullptr, InAMinute()).ok());
  EXPECT_TRUE(
      model.parameters()[11].values.SameBits(saved_.parameters()[11].values));
}

TEST_F(Checkpoints, OfAnotherModelAreRefusedByBothNames) {
  std::vector<CheckpointTensor> tensors = job_.tensors();
  tensors[9].name = "net";
  absl::Status status = LoadRefused(tensors);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("'net'"), HasSubstr(directory_.path())));

  tensors = job_.tensors();
  tensors[9].shape = {8, 1024};
  status = LoadRefused(tensors);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("'grid' of the model, fp32 [8, 1024]"),
                    HasSubstr("fp32 [1024, 8]")));

  Model fewer = Model::Of({{"prime", DType::kFloat32, 10007}}, 1);
  auto opened = Checkpoint::Open(directory_.path());
  status = (*opened)->Load(TensorsOf(fewer), nullptr, InAMinute());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("the model of 1 parameters lacks"));

  Model narrow = Model::Of({{"prime", DType::kBFloat16, 10007}}, 1);
  status = (*opened)->Load(TensorsOf(narrow), nullptr, InAMinute());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("bf16 [10007]"), HasSubstr("fp32 [10007]")));
}

TEST_F(Checkpoints, ThatDoNotFitTheOptimizerAreRefused) {
  // The optimizer steps fewer parameters than it did.
  Model model = Model::Mixed(5);
  std::vector<CheckpointTensor> tensors = TensorsOf(model);
  Job fewer(Model::Of({{"prime", DType::kFloat32, 10007}}, 5), {});
  ASSERT_TRUE(fewer.ok());
  for (CheckpointTensor& tensor : tensors) tensor.optimizer_parameter = -1;
  tensors[0].optimizer_parameter = 0;
  auto opened = Checkpoint::Open(directory_.path());
  absl::Status status =
      (*opened)->Load(tensors, &fewer.optimizer(), InAMinute());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("'half' is not the optimizer's"));

  const auto saved =
      SaveCheckpoint(directory_.path(), {.parameters = tensors}, InAMinute());
  ASSERT_TRUE(saved.ok()) << saved.status();
  status = job_.Load(directory_.path());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("no optimizer's state"));
}

TEST_F(Checkpoints, OfTensorsThatCannotBeAreRefused) {
  const std::vector<CheckpointTensor> good = job_.tensors();
  const auto refused = [&](const std::vector<CheckpointTensor>& tensors) {
    const auto saved = SaveCheckpoint(
        directory_.path(),
        {.parameters = tensors, .optimizer = &job_.optimizer()}, InAMinute());
    return absl::IsInvalidArgument(saved.status()) &&
           absl::IsInvalidArgument(LoadRefused(tensors));
  };
  std::vector<CheckpointTensor> bad = good;
  bad[0].data = nullptr;
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad[0].name = "half";
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad[0].shape = {-1};
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad[0].optimizer_parameter = 12;
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad[0].optimizer_parameter = 4;
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad[5].optimizer_parameter = 1;  // of another size
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad.pop_back();
  EXPECT_TRUE(refused(bad));
  ExpectIntact();
}

TEST_F(Checkpoints, AreNotMadeOfAnIncompleteStep) {
  job_.model().DrawGradients(2);
  const absl::Status cut =
      job_.optimizer().Step({}, job_.model().data(), absl::InfinitePast());
  ASSERT_FALSE(cut.ok());
  ASSERT_TRUE(job_.optimizer().incomplete());
  const absl::Status status = job_.Save(directory_.path());
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("step 2 is incomplete"));
  ExpectIntact();
}

TEST_F(Checkpoints, AreIntactAfterADeadlineThatPassed) {
  Job large(Model::Of({{"w", DType::kFloat32, 400'000}}, 1), {});
  ASSERT_TRUE(large.ok());
  large.Step(1);
  const auto saved = SaveCheckpoint(
      directory_.path(),
      {.parameters = large.tensors(), .optimizer = &large.optimizer()},
      absl::InfinitePast());
  EXPECT_TRUE(absl::IsDeadlineExceeded(saved.status())) << saved.status();
  ExpectIntact();
}

TEST_F(Checkpoints, WhoseJsonCannotBeReadLoseNoFiles) {
  directory_.Write("checkpoint.json", "{\"checksum\":\"");
  const auto before = directory_.Entries();
  ASSERT_TRUE(PrepareCheckpointDirectory(directory_.path()).ok());
  EXPECT_EQ(directory_.Entries(), before);
  EXPECT_TRUE(absl::IsDataLoss(Checkpoint::Open(directory_.path()).status()));
}

TEST_F(Checkpoints, AreWrittenByOneAtATime) {
  const int fd = open(directory_.path().c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  const absl::Status status = job_.Save(directory_.path());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(Checkpoint::Open(directory_.path()).ok());
  close(fd);
  ExpectIntact();
}

// The largest file that this process may write.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST_F(Checkpoints, AreIntactAfterAFileThatMayNotBeAsLong) {
  job_.Step(2);
  for (const rlim_t limit : {rlim_t{0}, rlim_t{1000}, rlim_t{300'000}}) {
    absl::Status status;
    {
      FileLimit at(limit);
      status = job_.Save(directory_.path());
    }
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr(directory_.path()), HasSubstr("EFBIG")));
    ExpectIntact();
  }
}

TEST_F(Checkpoints, AreIntactAfterAFullDisk) {
  TemporaryDirectory small;
  if (!small.MountTmpfs("size=2m")) {
    GTEST_SKIP() << "mounting a small file system is not allowed here";
  }
  // One checkpoint is 1.1 MB: there is no room for a second.
  ASSERT_TRUE(job_.Save(small.path()).ok());
  const auto before = small.Entries();
  job_.Step(2);
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = job_.Save(small.path());
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr(small.path()), HasSubstr("ENOSPC")));
    EXPECT_EQ(small.Entries(), before);
  }
  Job resumed(Model::Mixed(99), {});
  const absl::Status loaded = resumed.Load(small.path());
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_EQ(resumed.optimizer().step(), 1);
}

TEST(CheckpointDirectories, AreMadeWhereTheirParentIs) {
  TemporaryDirectory parent;
  EXPECT_TRUE(
      absl::IsNotFound(Checkpoint::Open(parent.path() + "/none").status()));
  EXPECT_TRUE(absl::IsNotFound(Checkpoint::Open(parent.path()).status()));
  EXPECT_TRUE(
      absl::IsNotFound(PrepareCheckpointDirectory(parent.path() + "/a/b")));
  ASSERT_TRUE(PrepareCheckpointDirectory(parent.path() + "/a/").ok());
  EXPECT_THAT(parent.Entries(), ElementsAre("a"));
  EXPECT_TRUE(std::filesystem::is_empty(parent.path() + "/a"));
  const std::string file = parent.Write("file", "x");
  EXPECT_TRUE(absl::IsInvalidArgument(PrepareCheckpointDirectory(file)));
  EXPECT_TRUE(absl::IsInvalidArgument(Checkpoint::Open(file).status()));
}

TEST(CheckpointDirectories, MayBeGivenRelativeToTheWorkingDirectory) {
  TemporaryDirectory directory;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  const auto saved = SaveCheckpoint("here", {}, InAMinute());
  const bool opens = Checkpoint::Open("here").ok();
  std::filesystem::current_path(before);
  EXPECT_TRUE(saved.ok()) << saved.status();
  EXPECT_TRUE(opens);
}

}  // namespace
}  // namespace terrace
