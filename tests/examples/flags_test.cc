#include "examples/train_gpt/command_line/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "examples/train_gpt/command_line/flag_values.h"

namespace train_gpt {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<Flags> Parse(const std::vector<std::string>& arguments) {
  return ParseFlags(arguments);
}

std::string ErrorOf(const std::vector<std::string>& arguments) {
  const auto flags = Parse(arguments);
  return flags.ok() ? "no error" : std::string(flags.status().message());
}

TEST(FlagsTest, PresetsHaveTheSizesTheyPromise) {
  const auto count = [](const char* size) {
    return ParameterCount(Parse({"--size", size})->shape);
  };
  EXPECT_NEAR(count("tiny"), 3e6, 0.2e6);
  EXPECT_GE(count("mini"), 30e6);
  EXPECT_LT(count("mini"), 31e6);
  // GPT-2 has 124,439,808 with 50,257 rows; here they are 50,304.
  EXPECT_EQ(count("small"), 124439808 + (50304 - 50257) * 768);
  EXPECT_EQ(count("medium"), 354823168 + (50304 - 50257) * 1024);
  EXPECT_EQ(count("large"), 774030080 + (50304 - 50257) * 1280);
}

TEST(FlagsTest, OwnNumbersOverrideThePresetInAnyOrder) {
  const auto flags = Parse({"--width=896", "--layers", "13", "--size", "mini"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->shape.layers, 13);
  EXPECT_EQ(flags->shape.width, 896);
  EXPECT_EQ(flags->shape.heads, 14);
  EXPECT_EQ(flags->shape.context, 512);
}

TEST(FlagsTest, SequenceFollowsAShorterContext) {
  EXPECT_EQ(Parse({"--context", "32"})->seq, 32);
  EXPECT_EQ(Parse({})->seq, 128);
  EXPECT_THAT(ErrorOf({"--context", "32", "--seq", "33"}),
              HasSubstr("--seq 33 is more than the model's context of 32"));
}

TEST(FlagsTest, AMisspeltFlagNamesTheNearest) {
  EXPECT_THAT(ErrorOf({"--learning-rat", "1"}),
              HasSubstr("did you mean --learning-rate?"));
  EXPECT_THAT(ErrorOf({"--stesp=3"}), HasSubstr("did you mean --steps?"));
  EXPECT_THAT(ErrorOf({"--zzzzzzzzzzzz"}), HasSubstr("--help lists them"));
  EXPECT_THAT(ErrorOf({"tiny"}), HasSubstr("'tiny' is not a flag"));
}

TEST(FlagsTest, EachWrongValueIsOneLineThatNamesItsFlag) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--steps", "0"},
      {"--steps", "3x"},
      {"--batch=-1"},
      {"--learning-rate", "x"},
      {"--clip", "nan"},
      {"--beta1", "1"},
      {"--weight-decay", "-1"},
      {"--warmup-num-steps", "-1"},
      {"--clip", "-1"},
      {"--dtype", "fp64"},
      {"--size", "huge"},
      {"--optimizer", "adm"},
      {"--seed", "-4"},
      {"--data="},
      {"--threads", "0"},
      {"--seq"},
      {"--heads", "3"},
      {"--vocab", "0"},
      {"--help=yes"},
      {"--accumulate", ""},
      {"--steps", "1e3"},
      {"--learning-rate", "inf"},
      {"--memory-budget", "ten"},
      {"--memory-budget", "0%"},
      {"--memory-budget", "nan%"},
      {"--pace", "1GB"},
      {"--pace", "1GB,-1"},
      {"--io-engine", "aio"},
      {"--nvme-path="},
      {"--device", "cuda"},
  };
  for (const auto& arguments : wrong) {
    const std::string error = ErrorOf(arguments);
    const std::string flag = arguments[0].substr(0, arguments[0].find('='));
    EXPECT_THAT(error, HasSubstr(flag));
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST(FlagsTest, HelpNamesEveryFlagAndStopsReading) {
  const auto flags = Parse({"--help", "--nonsense"});
  ASSERT_TRUE(flags.ok());
  EXPECT_TRUE(flags->help);
  for (const char* name : {"--size", "--data", "--accumulate", "--clip"}) {
    EXPECT_THAT(Usage(), HasSubstr(name));
  }
}

TEST(FlagValuesTest, BytesTakeSuffixesOfBothKinds) {
  const auto bytes = [](const char* text) {
    return ParseBytes("--x", text).value_or(-1);
  };
  EXPECT_EQ(bytes("4096"), 4096);
  EXPECT_EQ(bytes("64MiB"), 64 << 20);
  EXPECT_EQ(bytes("1.5GiB"), 3 << 29);
  EXPECT_EQ(bytes("2GB"), 2000000000);
  EXPECT_EQ(bytes("7b"), 7);
  for (const char* bad : {"", "MiB", "-1", "0", "1XiB", "1e30", "nan", "0.2"}) {
    EXPECT_EQ(bytes(bad), -1) << bad;
  }
}

TEST(FlagValuesTest, NearestNameNeedsFewEdits) {
  EXPECT_EQ(NearestName("--stpes", {"--steps", "--seed"}), "--steps");
  EXPECT_EQ(NearestName("--xyz", {"--steps", "--seed"}), "");
}

}  // namespace
}  // namespace train_gpt
