// Values that are long: in a file of their own, and none of them in
// checkpoint.json.
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/foreign_reader.h"
#include "tests/checkpoint/job.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::string Bytes(size_t size) {
  std::string bytes(size, '\0');
  unsigned char last = 3;
  for (char& byte : bytes) byte = static_cast<char>(last = last * 29 + 7);
  return bytes;
}

absl::Status Save(const TemporaryDirectory& directory,
                  const CheckpointValues& values) {
  return SaveCheckpoint(directory.path(), {.values = values}, InAMinute())
      .status();
}

TEST(LongValues, LieInAFileOfTheirOwnAndComeBack) {
  const CheckpointValues values = {
      {"seed", int64_t{7}},
      {"short", CheckpointBytes{Bytes(4096)}},
      {"long", CheckpointBytes{Bytes(4097)}},
      // Three blocks of 4 MiB, of which the last is short.
      {"longest", CheckpointBytes{Bytes((8 << 20) + 11)}},
      {"text", std::string(5000, 'x') + "\xc3\xa9"},
      {"", CheckpointBytes{Bytes(5000)}},
      {"__metadata__", CheckpointBytes{Bytes(5001)}}};
  TemporaryDirectory directory;
  ASSERT_TRUE(Save(directory, values).ok());
  EXPECT_LT(ReadAll(directory.path() + "/checkpoint.json").size(), 12'000u);
  EXPECT_THAT(directory.Entries(), SizeIs(3));
  const auto foreign = ReadSafetensors(ReadAll(FileOf(directory, "values-")));
  ASSERT_THAT(foreign, SizeIs(5));
  EXPECT_EQ(foreign.at("value.longest").dtype, "U8");
  EXPECT_EQ(foreign.at("value.longest").bytes, Bytes((8 << 20) + 11));
  EXPECT_EQ(foreign.at("value.").bytes, Bytes(5000));
  auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE((*checkpoint)->values() == values);
  EXPECT_TRUE((*checkpoint)->Verify().ok());
  // The next save takes the file away.
  ASSERT_TRUE(Save(directory, {}).ok());
  EXPECT_THAT(directory.Entries(), SizeIs(2));
}

TEST(LongValues, AreAlsoManyThatAreShort) {
  CheckpointValues values;
  for (int i = 0; i < 2000; ++i) {
    values[absl::StrCat(i)] = CheckpointBytes{Bytes(4000)};
  }
  TemporaryDirectory directory;
  ASSERT_TRUE(Save(directory, values).ok());
  // Two digits a byte of 1 MiB, and the keys.
  EXPECT_LT(ReadAll(directory.path() + "/checkpoint.json").size(), 2'500'000u);
  auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE((*checkpoint)->values() == values);
}

TEST(LongValues, ThatAreTextMustBeUtf8) {
  TemporaryDirectory directory;
  const absl::Status status =
      Save(directory, {{"text", std::string(5000, 'x') + "\xff"}});
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("'text'"));
  EXPECT_THAT(directory.Entries(), IsEmpty());
}

TEST(LongValues, ThatAreAlteredAreFoundWithTheirNameAndFile) {
  TemporaryDirectory directory;
  ASSERT_TRUE(Save(directory, {{"rng", CheckpointBytes{Bytes(5000)}}}).ok());
  const std::string path = FileOf(directory, "values-");
  std::string bytes = ReadAll(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  directory.Write(path.substr(path.rfind('/') + 1), bytes);
  absl::Status status = Checkpoint::Open(directory.path()).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("'value.rng'"), HasSubstr(path)));
  std::filesystem::remove(path);
  status = Checkpoint::Open(directory.path()).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST(LongValues, OfACommitThatIsGivenUpAreRemoved) {
  TemporaryDirectory directory;
  ASSERT_TRUE(Save(directory, {{"old", CheckpointBytes{Bytes(5000)}}}).ok());
  const auto before = directory.Entries();
  {
    auto commit = CheckpointCommit::Begin(
        directory.path(), {{"new", CheckpointBytes{Bytes(5000)}}});
    ASSERT_TRUE(commit.ok()) << commit.status();
    // The file and the lock.
    EXPECT_THAT(directory.Entries(), SizeIs(before.size() + 2));
    EXPECT_FALSE((*commit)->Commit({}).ok());
  }
  EXPECT_EQ(directory.Entries(), before);
}

}  // namespace
}  // namespace terrace
