#include "tests/zero_config/key_rows.h"

#include <gtest/gtest.h>

#include <set>

#include "absl/strings/match.h"

namespace terrace::zero_config_test {
namespace {

using NoteKind = ZeroConfigNote::Kind;

std::string Quote(const Row& row) {
  return std::string(row.path) + ": " + row.value + "\n" + TextOf(row);
}

// The one note of that path and kind.
void ExpectNote(const Row& row, const ZeroConfigSettings& settings,
                NoteKind kind) {
  int found = 0;
  for (const ZeroConfigNote& note : settings.notes) {
    if (note.path != row.path || note.kind != kind) continue;
    ++found;
    EXPECT_TRUE(absl::StrContains(note.text, row.text)) << note.text;
    EXPECT_FALSE(note.text.empty());
  }
  EXPECT_EQ(found, 1);
}

void ExpectError(const Row& row,
                 const absl::StatusOr<ZeroConfigSettings>& settings,
                 absl::StatusCode code) {
  ASSERT_EQ(settings.status().code(), code) << settings.status();
  const std::string message(settings.status().message());
  // The key or, where a part of it is wrong, something below it.
  EXPECT_TRUE(absl::StrContains(message, row.path)) << message;
  EXPECT_TRUE(absl::StrContains(message, row.text)) << message;
  EXPECT_TRUE(absl::StrContains(message, "line 1")) << message;
  EXPECT_FALSE(absl::StrContains(message, "\n")) << message;
}

void Check(const Row& row) {
  SCOPED_TRACE(Quote(row));
  const auto settings = Read(TextOf(row));
  if (row.expect == Expect::kInvalid) {
    return ExpectError(row, settings, absl::StatusCode::kInvalidArgument);
  }
  if (row.expect == Expect::kNotBuilt) {
    return ExpectError(row, settings, absl::StatusCode::kUnimplemented);
  }
  ASSERT_TRUE(settings.ok()) << settings.status();
  switch (row.expect) {
    case Expect::kSized:
      return ExpectNote(row, *settings, NoteKind::kSized);
    case Expect::kIgnored:
      return ExpectNote(row, *settings, NoteKind::kIgnored);
    case Expect::kDeprecated:
      return ExpectNote(row, *settings, NoteKind::kDeprecated);
    case Expect::kMeaning:
      return ExpectNote(row, *settings, NoteKind::kMeaning);
    default:
      for (const ZeroConfigNote& note : settings->notes) {
        EXPECT_NE(note.path, row.path) << note.text;
      }
  }
}

TEST(KeyRows, ZeroOptimizationDoesWhatItsRowsSay) {
  for (const Row& row : ZeroRows()) Check(row);
}

TEST(KeyRows, OffloadDoesWhatItsRowsSay) {
  for (const Row& row : OffloadRows()) Check(row);
}

TEST(KeyRows, TrainingDoesWhatItsRowsSay) {
  for (const Row& row : TrainingRows()) Check(row);
}

TEST(KeyRows, TopLevelDoesWhatItsRowsSay) {
  for (const Row& row : TopRows()) Check(row);
}

TEST(KeyRows, OtherSectionsDoWhatTheirRowsSay) {
  for (const Row& row : OtherRows()) Check(row);
}

TEST(KeyRows, EveryKeyHasARow) {
  // A row of a key below says that its section is read.
  std::set<std::string> seen;
  for (const Row& row : AllRows()) {
    std::string path = row.path;
    seen.insert(path);
    for (size_t dot = path.rfind('.'); dot != std::string::npos;
         dot = path.rfind('.')) {
      path.resize(dot);
      seen.insert(path);
    }
  }
  for (const ZeroConfigKey& key : ZeroConfigKeys()) {
    EXPECT_EQ(seen.count(key.path), 1u) << key.path;
    seen.erase(key.path);
  }
  // Rows of keys that do not exist are those that expect to hear so.
  for (const std::string& path : seen) {
    for (const Row& row : AllRows()) {
      if (path != row.path) continue;
      EXPECT_EQ(row.expect, Expect::kInvalid) << path;
    }
  }
}

TEST(KeyRows, EveryTypedKeyRefusesAnObjectByItsPath) {
  for (const ZeroConfigKey& key : ZeroConfigKeys()) {
    if (key.allowed == "any value" || key.allowed == "an object") continue;
    SCOPED_TRACE(key.path);
    const Row row = {key.path.c_str(), "{\"x\": 1}", Expect::kInvalid};
    Check(row);
  }
}

// Those that DeepSpeed looks keys up in have a note on the others.
TEST(KeyRows, NoSectionReadsAKeyThatItDoesNotHave) {
  const std::set<std::string> noted = {"optimizer",
                                       "scheduler",
                                       "data_types",
                                       "aio",
                                       "checkpoint",
                                       "activation_checkpointing",
                                       "checkpoint.writer",
                                       "nebula",
                                       "checkpoint.parallel_write"};
  for (const ZeroConfigKey& key : ZeroConfigKeys()) {
    if (key.allowed != "an object") continue;
    const std::string path = key.path + ".qqqqqq";
    const std::string beside = key.path == "optimizer" ? "\"type\": \"AdamW\", "
                               : key.path == "scheduler"
                                   ? "\"type\": \"LRRangeTest\", "
                                   : "";
    const bool is_noted = noted.count(key.path) > 0;
    const Row row = {path.c_str(), "1",
                     is_noted ? Expect::kIgnored : Expect::kInvalid,
                     is_noted ? "not read" : "no key", beside.c_str()};
    Check(row);
  }
}

}  // namespace
}  // namespace terrace::zero_config_test
