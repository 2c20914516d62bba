// Which files a save removes: those that a list of a save names, and no other;
// and which files and locks it refuses to save beside.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/file.h"
#include "checkpoint/save/file_list.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/job.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::SizeIs;

constexpr char kLock[] = "checkpoint.lock";
constexpr size_t kFiles = 3;  // of a checkpoint without values

// Of names that a save could have given.
const std::vector<std::string>& LikeNames() {
  static const auto* const names =
      new std::vector<std::string>{"optimizer-fedcba9876543210.safetensors",
                                   "parameters-0123456789abcdef.safetensors",
                                   "values-0123456789abcdef.safetensors"};
  return *names;
}

class LeftoversTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(job_.ok());
    job_.Step(1);
  }

  absl::Status Save() { return job_.Save(directory_.path()); }
  std::string Below(const std::string& name) const {
    return directory_.path() + "/" + name;
  }
  std::string Text(const std::string& name) const {
    std::ifstream in(Below(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void ExpectOpens(int64_t step) {
    auto checkpoint = Checkpoint::Open(directory_.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ((*checkpoint)->step(), step);
    EXPECT_TRUE((*checkpoint)->Verify().ok());
  }
  // All three ways that begin to write there.
  void ExpectRefused(const std::string& why) {
    const auto before = directory_.Entries();
    for (const absl::Status& status :
         {Save(), PrepareCheckpointDirectory(directory_.path()),
          CheckpointCommit::Begin(directory_.path(), {}).status()}) {
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(directory_.path()), HasSubstr(why)));
    }
    EXPECT_EQ(directory_.Entries(), before);
  }

  TemporaryDirectory directory_;
  Job job_{Model::Of({{"w", DType::kFloat32, 5000}}, 3), {}};
};

TEST_F(LeftoversTest, FilesOfALikeNameStayBesideACheckpoint) {
  ASSERT_TRUE(Save().ok());
  std::vector<std::string> foreign = LikeNames();
  for (const char* name :
       {"checkpoint.json.new", "checkpoint-0123456789abcdef.json",
        "checkpoint-0123456789abcdef.lock", "checkpoint.json.bak"}) {
    foreign.push_back(name);
  }
  for (const std::string& name : foreign) directory_.Write(name, "theirs");
  for (int64_t step = 2; step <= 3; ++step) {
    ASSERT_TRUE(PrepareCheckpointDirectory(directory_.path()).ok());
    job_.Step(step);
    ASSERT_TRUE(Save().ok());
    ExpectOpens(step);
  }
  EXPECT_THAT(directory_.Entries(), IsSupersetOf(foreign));
  EXPECT_THAT(directory_.Entries(), SizeIs(kFiles + foreign.size()));
  for (const std::string& name : foreign) EXPECT_EQ(Text(name), "theirs");
}

TEST_F(LeftoversTest, FilesOfALikeNameAreARefusalWithoutACheckpoint) {
  for (const std::string& name : LikeNames()) {
    directory_.Write(name, "theirs");
    ExpectRefused(name);
    ExpectRefused("checkpoint.json");
    EXPECT_EQ(Text(name), "theirs");
    fs::remove(Below(name));
  }
  for (const std::string& name : LikeNames()) directory_.Write(name, "theirs");
  ExpectRefused("and 2 more");
  for (const std::string& name : LikeNames()) fs::remove(Below(name));
  EXPECT_TRUE(Save().ok());
  ExpectOpens(1);
}

// As of a checkpoint whose checkpoint.json was lost.
TEST_F(LeftoversTest, ACheckpointWithoutItsJsonIsNotSavedOver) {
  ASSERT_TRUE(Save().ok());
  fs::rename(Below("checkpoint.json"), Below("aside"));
  ExpectRefused("optimizer-");
  fs::rename(Below("aside"), Below("checkpoint.json"));
  ExpectOpens(1);
  EXPECT_TRUE(Save().ok());
}

TEST_F(LeftoversTest, ALockThatIsNoneIsARefusal) {
  TemporaryDirectory elsewhere;
  const std::string target = elsewhere.Write("target", "");
  const std::vector<std::function<void(const std::string&)>> kinds = {
      [&](const std::string&) { directory_.Write(kLock, "garbage\n"); },
      [&](const std::string&) {
        directory_.Write(kLock, std::string("\0\0x", 3));
      },
      [&](const std::string&) {
        directory_.Write(kLock, "terrace: the files of a save\n../target\n");
      },
      [&](const std::string&) {
        directory_.Write(kLock, "terrace: the files of a save\n" +
                                    std::string("checkpoint.json\n"));
      },
      [&](const std::string& lock) { fs::create_symlink(target, lock); },
      [&](const std::string& lock) { fs::create_symlink("nowhere", lock); },
      [&](const std::string& lock) {
        EXPECT_EQ(mkfifo(lock.c_str(), 0600), 0);
      },
      [&](const std::string& lock) { fs::create_directory(lock); },
      [&](const std::string& lock) {
        directory_.Write(kLock, "");
        fs::resize_file(lock, uintmax_t{1} << 40);
      }};
  for (const bool first : {true, false}) {
    for (const auto& make : kinds) {
      SCOPED_TRACE(absl::StrCat("kind ", &make - &kinds[0]));
      make(Below(kLock));
      ExpectRefused(kLock);
      EXPECT_EQ(fs::remove_all(Below(kLock)), 1u);
      EXPECT_TRUE(fs::exists(target));
      if (!first) ExpectOpens(1);
    }
    ASSERT_TRUE(Save().ok());
  }
}

TEST_F(LeftoversTest, ALockThatIsTornIsTakenOver) {
  std::string whole;
  {
    const auto commit = CheckpointCommit::Begin(
        directory_.path(), {{"long", CheckpointBytes{std::string(9999, 'x')}}});
    ASSERT_TRUE(commit.ok()) << commit.status();
    whole = Text(kLock);
    EXPECT_THAT(whole, HasSubstr("values-"));
  }
  EXPECT_THAT(directory_.Entries(), IsEmpty());
  ASSERT_GT(whole.size(), 60u);
  for (size_t size = 0; size <= whole.size(); ++size) {
    for (const size_t zeros : {0, 9}) {
      directory_.Write(kLock, whole.substr(0, size) + std::string(zeros, '\0'));
      const absl::Status status = PrepareCheckpointDirectory(directory_.path());
      // Zeros within the first line are no beginning of it.
      const bool torn = zeros == 0 || size == 0 || size >= whole.find('\n') + 1;
      EXPECT_EQ(status.ok(), torn) << size << " " << zeros << " " << status;
      EXPECT_EQ(fs::remove(Below(kLock)), !torn);
      EXPECT_THAT(directory_.Entries(), IsEmpty());
    }
  }
  EXPECT_TRUE(Save().ok());
}

TEST_F(LeftoversTest, WhatIsListedGoesAndNoneThatIsTheCheckpoints) {
  ASSERT_TRUE(Save().ok());
  const auto saved = directory_.Entries();
  std::string text;
  {
    const auto commit = CheckpointCommit::Begin(directory_.path(), {});
    ASSERT_TRUE(commit.ok()) << commit.status();
    text = Text(kLock);
  }
  // As after a kill between the rename and the removal.
  for (const std::string& name : saved) {
    if (name != "checkpoint.json") absl::StrAppend(&text, name, "\n");
  }
  absl::StrAppend(&text, LikeNames()[0], "\n");
  for (const std::string& name : LikeNames()) directory_.Write(name, "x");
  directory_.Write(kLock, text);
  ASSERT_TRUE(PrepareCheckpointDirectory(directory_.path()).ok());
  ExpectOpens(1);
  EXPECT_THAT(directory_.Entries(), SizeIs(kFiles + 2));
  EXPECT_FALSE(fs::exists(Below(LikeNames()[0])));
}

TEST_F(LeftoversTest, OfManyThatSaveAtOnceEachIsDoneOrUnavailable) {
  constexpr int kThreads = 4;
  std::vector<std::unique_ptr<Job>> jobs;
  for (int i = 0; i < kThreads; ++i) {
    jobs.push_back(std::make_unique<Job>(
        Model::Of({{"w", DType::kFloat32, 5000}}, 3), Arrangement{}));
    ASSERT_TRUE(jobs[i]->ok());
    jobs[i]->Step(1);
  }
  std::atomic<int> done = 0;
  std::vector<std::thread> threads;
  for (const auto& job : jobs) {
    threads.emplace_back([&] {
      for (int i = 0; i < 25; ++i) {
        const absl::Status status = job->Save(directory_.path());
        EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
        done += status.ok() ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(done, 0);
  ExpectOpens(1);
  EXPECT_THAT(directory_.Entries(), SizeIs(kFiles));
}

// Elements during whose reading something happens.
class Happening final : public CheckpointElements {
 public:
  explicit Happening(std::function<void()> body) : body_(std::move(body)) {}
  absl::Status Read(int64_t, absl::Span<std::byte>) override {
    body_();
    return absl::OkStatus();
  }
  absl::Status Write(int64_t, absl::Span<const std::byte>) override {
    return absl::OkStatus();
  }

 private:
  const std::function<void()> body_;
};

TEST_F(LeftoversTest, APartWhoseSaveEndsMeanwhileIsNoneAndLeavesNothing) {
  auto commit = CheckpointCommit::Begin(directory_.path(), {});
  ASSERT_TRUE(commit.ok()) << commit.status();
  Happening happening([&] { commit->reset(); });
  std::vector<CheckpointTensor> tensors = job_.tensors();
  tensors.push_back({.name = "last", .shape = {1}, .elements = &happening});
  const auto part = WriteCheckpointPart(
      directory_.path(),
      {.parameters = tensors, .optimizer = &job_.optimizer()},
      CheckpointPart::kParametersAndState, InAMinute());
  EXPECT_TRUE(absl::IsFailedPrecondition(part.status())) << part.status();
  EXPECT_THAT(directory_.Entries(), IsEmpty());
  EXPECT_TRUE(Save().ok());
}

// A rank that goes on when the commit is gone, of a first save.
TEST_F(LeftoversTest, APartOfNoSaveIsTheNextOnesToRemove) {
  const std::vector<CheckpointTensor> tensors = job_.tensors();
  ASSERT_TRUE(WriteCheckpointPart(
                  directory_.path(),
                  {.parameters = tensors, .optimizer = &job_.optimizer()},
                  CheckpointPart::kState, InAMinute())
                  .ok());
  ASSERT_TRUE(Save().ok());
  ExpectOpens(1);
  EXPECT_THAT(directory_.Entries(), SizeIs(kFiles));
}

// Every list that is made can be read; one that could not is none, and what it
// would have listed was not made yet.
TEST_F(LeftoversTest, AListIsNotLongerThanItIsReadAgain) {
  auto directory = File::OpenDirectory(directory_.path());
  ASSERT_TRUE(directory.ok());
  const std::vector<std::string> many(150'000, LikeNames().front());
  auto list = FileList::Create(*directory, kLock, many);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(list->Add(many).ToString(),
              AllOf(HasSubstr(Below(kLock)), HasSubstr("150000 files more")));
  const auto listed = FileList::Read(*directory, kLock);
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_THAT(listed->files, SizeIs(many.size()));

  EXPECT_FALSE(
      FileList::Create(*directory, "another",
                       std::vector<std::string>(300'000, LikeNames().front()))
          .ok());
  EXPECT_FALSE(fs::exists(Below("another")));
}

}  // namespace
}  // namespace terrace
