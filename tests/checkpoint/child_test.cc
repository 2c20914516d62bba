// terrace/checkpoint.h: what a child of fork() has of its parent's save: a copy
// that can neither commit it nor give it up, and no lock.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "terrace/checkpoint.h"
#include "tests/support/open_descriptors.h"
#include "tests/support/own_child.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

Time Soon() { return absl::Now() + absl::Seconds(30); }

class SaveOfAParent : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<CheckpointCommit>> Begin() {
    // Beyond what checkpoint.json takes: it is a file of its own.
    return CheckpointCommit::Begin(
        directory_.path(),
        {{"value", CheckpointBytes{std::string(1 << 20, 'v')}}});
  }
  std::vector<CheckpointTensor> Tensors(std::vector<float>& values) {
    return {{.name = "a",
             .dtype = DType::kFloat32,
             .shape = {static_cast<int64_t>(values.size())},
             .data = values.data()}};
  }
  absl::StatusOr<std::string> Write(float value) {
    std::vector<float> values(kElements, value);
    const std::vector<CheckpointTensor> tensors = Tensors(values);
    return WriteCheckpointPart(directory_.path(), {.parameters = tensors},
                               CheckpointPart::kParametersAndState, Soon());
  }
  // The value of all elements; -1: there is no such checkpoint.
  float Loaded() {
    auto checkpoint = Checkpoint::Open(directory_.path());
    if (!checkpoint.ok() || !(*checkpoint)->Verify().ok()) return -1;
    std::vector<float> values(kElements);
    const std::vector<CheckpointTensor> tensors = Tensors(values);
    const bool is_whole = (*checkpoint)->Load(tensors, nullptr, Soon()).ok() &&
                          values == std::vector<float>(kElements, values[0]);
    return is_whole ? values[0] : -1;
  }

  static constexpr size_t kElements = 10'000;
  TemporaryDirectory directory_;
};

TEST_F(SaveOfAParent, IsNeitherGivenUpNorUnlockedByAChild) {
  for (int round = 1; round <= 3; ++round) {
    auto commit = Begin();
    ASSERT_TRUE(commit.ok()) << commit.status();
    const auto part = Write(static_cast<float>(round));
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_TRUE(InChild([&] {
      const bool is_refused =
          absl::IsCancelled((*commit)->Commit({*part}).status());
      commit->reset();
      return is_refused;
    }));
    EXPECT_TRUE(InChild([&] { return absl::IsUnavailable(Begin().status()); }))
        << "its lock is the parent's";
    const absl::Status saved = (*commit)->Commit({*part}).status();
    EXPECT_TRUE(saved.ok()) << saved;
    EXPECT_EQ(Loaded(), static_cast<float>(round));
  }
}

TEST_F(SaveOfAParent, LeavesNoLockWithAChildThatLives) {
  const ChildOfAKilledParent child([&](absl::FunctionRef<void()> leave) {
    const auto commit = Begin();
    if (!commit.ok() || !Write(1).ok()) return;
    leave();
  });
  ASSERT_TRUE(child.ok());
  auto commit = Begin();
  EXPECT_TRUE(commit.ok()) << commit.status();
  if (commit.ok()) {
    const auto part = Write(2);
    ASSERT_TRUE(part.ok()) << part.status();
    const absl::Status saved = (*commit)->Commit({*part}).status();
    EXPECT_TRUE(saved.ok()) << saved;
  }
  EXPECT_EQ(Loaded(), 2);
}

TEST_F(SaveOfAParent, EndsWhileAChildLives) {
  auto commit = Begin();
  ASSERT_TRUE(commit.ok()) << commit.status();
  const auto part = Write(3);
  ASSERT_TRUE(part.ok()) << part.status();
  const LivingChild child;
  EXPECT_TRUE((*commit)->Commit({*part}).ok());
  commit->reset();
  commit = Begin();
  EXPECT_TRUE(commit.ok()) << commit.status();
  EXPECT_EQ(Loaded(), 3);
}

TEST_F(SaveOfAParent, IsNoChildsToReadOnceItIsOpen) {
  {
    auto commit = Begin();
    ASSERT_TRUE(commit.ok()) << commit.status();
    const auto part = Write(5);
    ASSERT_TRUE(part.ok()) << part.status();
    ASSERT_TRUE((*commit)->Commit({*part}).ok());
  }
  const std::set<std::string> before = OpenDescriptors();
  auto checkpoint = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  std::vector<float> values(kElements);
  const std::vector<CheckpointTensor> tensors = Tensors(values);
  EXPECT_TRUE(InChild([&] {
    return OpenDescriptors() == before &&
           absl::IsCancelled((*checkpoint)->Verify()) &&
           absl::IsCancelled((*checkpoint)->Load(tensors, nullptr, Soon())) &&
           values[0] == 0 && Loaded() == 5;  // which opens it anew
  }));
  EXPECT_TRUE((*checkpoint)->Load(tensors, nullptr, Soon()).ok());
  EXPECT_EQ(values, std::vector<float>(kElements, 5));
}

TEST_F(SaveOfAParent, AChildSavesWhatIsItsOwn) {
  EXPECT_TRUE(InChild([&] {
    auto commit = Begin();
    if (!commit.ok()) return false;
    const auto part = Write(4);
    return part.ok() && (*commit)->Commit({*part}).ok();
  }));
  EXPECT_EQ(Loaded(), 4);
}

}  // namespace
}  // namespace terrace
