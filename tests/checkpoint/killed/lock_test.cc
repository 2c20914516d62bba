// The lock's file of a checkpoint on a file system that several hosts may have,
// whose own locks may count on one of them only.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/job.h"
#include "tests/support/fuse/fuse_mount.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

using testing::AllOf;
using testing::HasSubstr;

class CheckpointLockTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!mount_.ok()) GTEST_SKIP() << mount_.reason();
    ASSERT_TRUE(job_.ok());
    job_.Step(1);
    shared_ = mount_.path() + "/run";
    fs::create_directory(shared_);
  }

  static std::string LockOf(const std::string& directory) {
    return directory + "/checkpoint.lock";
  }
  static std::string Read(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void Write(const std::string& file, const std::string& text) {
    std::ofstream(file, std::ios::binary) << text;
  }
  // What a save of this process has in it.
  std::string OwnText() const {
    TemporaryDirectory own;
    const auto commit = CheckpointCommit::Begin(own.path(), {});
    EXPECT_TRUE(commit.ok()) << commit.status();
    return Read(LockOf(own.path()));
  }
  // That text as another host's: its name, machine and start are others.
  static std::string OfNode7(const std::string& text) {
    const size_t owner = text.find("owner ");
    EXPECT_NE(owner, std::string::npos) << text;
    const size_t host = text.find(' ', owner + 6) + 1;
    return text.substr(0, host) + "node7-00112233445566aa-ffeeddccbbaa9988" +
           text.substr(text.find('\n', host));
  }
  void ExpectSaves(const std::string& directory) {
    const absl::Status status = job_.Save(directory);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_FALSE(fs::exists(LockOf(directory)));
    auto checkpoint = Checkpoint::Open(directory);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_TRUE((*checkpoint)->Verify().ok());
  }

  FuseMount mount_;
  std::string shared_;
  Job job_{Model::Of({{"w", DType::kFloat32, 5000}}, 3), {}};
};

TEST_F(CheckpointLockTest, OfAnotherHostIsNotTakenOver) {
  const std::string text = OfNode7(OwnText());
  for (const bool first : {true, false}) {
    Write(LockOf(shared_), text);
    for (const absl::Status& status :
         {job_.Save(shared_), PrepareCheckpointDirectory(shared_),
          CheckpointCommit::Begin(shared_, {}).status()}) {
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(LockOf(shared_)), HasSubstr("node7")));
    }
    EXPECT_EQ(Read(LockOf(shared_)), text);
    EXPECT_EQ(Checkpoint::Open(shared_).ok(), !first);
    fs::remove(LockOf(shared_));
    ExpectSaves(shared_);
  }
}

TEST_F(CheckpointLockTest, OfAnotherHostIsTakenOverWhereLocksCountForAll) {
  TemporaryDirectory own;
  Write(LockOf(own.path()), OfNode7(OwnText()));
  ExpectSaves(own.path());
}

TEST_F(CheckpointLockTest, OfThisHostIsTakenOverFromADeadSave) {
  std::string text = OwnText();
  Write(LockOf(shared_), text);
  ExpectSaves(shared_);
  // Of an earlier start of it.
  const size_t line = text.find("owner ");
  ASSERT_NE(line, std::string::npos);
  const size_t boot = text.find('\n', line) - 16;
  if (text.substr(boot - 17, 16) == "0000000000000000") {
    GTEST_SKIP() << "this machine has no id";
  }
  text.replace(boot, 16, "0123456789abcdef");
  Write(LockOf(shared_), text);
  ExpectSaves(shared_);
}

// The beginning of one, that does not say yet whose it is.
TEST_F(CheckpointLockTest, OfNobodyKnownIsNotTakenOver) {
  const std::string text = OwnText();
  for (const size_t size : {size_t{0}, text.find("owner ")}) {
    Write(LockOf(shared_), text.substr(0, size));
    const absl::Status status = job_.Save(shared_);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(LockOf(shared_)));
    EXPECT_EQ(Read(LockOf(shared_)), text.substr(0, size));
    fs::remove(LockOf(shared_));
  }
  ExpectSaves(shared_);
}

TEST_F(CheckpointLockTest, NamesItsOwnerAsLongAsASaveIsUnderWay) {
  auto commit = CheckpointCommit::Begin(shared_, {});
  ASSERT_TRUE(commit.ok()) << commit.status();
  EXPECT_THAT(Read(LockOf(shared_)),
              HasSubstr("owner " + std::to_string(getpid()) + " "));
  EXPECT_TRUE(absl::IsUnavailable(job_.Save(shared_)));
  commit->reset();
  ExpectSaves(shared_);
}

}  // namespace
}  // namespace terrace
