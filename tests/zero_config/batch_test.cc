#include <gtest/gtest.h>

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/zero_config/key_rows.h"

namespace terrace::zero_config_test {
namespace {

// 0: absent, -1: "auto".
std::string Batch(int64_t train, int64_t micro, int64_t steps) {
  std::string text = "{\"steps_per_print\": 1";
  const auto add = [&](const char* key, int64_t value) {
    if (value == 0) return;
    absl::StrAppend(&text, ", \"", key,
                    "\": ", value < 0 ? "\"auto\"" : absl::StrCat(value));
  };
  add("train_batch_size", train);
  add("train_micro_batch_size_per_gpu", micro);
  add("gradient_accumulation_steps", steps);
  return text + "}";
}

struct Case {
  int64_t train, micro, steps, ranks;
  int64_t want_train, want_micro, want_steps;  // 0: refused
};

TEST(Batch, TheProductOfMicroBatchStepsAndRanksIsTheBatch) {
  const Case cases[] = {
      {32, 4, 2, 4, 32, 4, 2},
      {32, 4, 0, 4, 32, 4, 2},
      {32, 0, 2, 4, 32, 4, 2},
      {32, 0, 0, 4, 32, 8, 1},
      {0, 4, 2, 4, 32, 4, 2},
      {0, 4, 0, 4, 16, 4, 1},
      {-1, 4, 2, 4, 32, 4, 2},
      {32, -1, 2, 4, 32, 4, 2},
      {32, 4, -1, 4, 32, 4, 2},
      {1, 1, 1, 1, 1, 1, 1},
      {32, 4, 3, 4, 0, 0, 0},
      {33, 4, 0, 4, 0, 0, 0},
      {2, 4, 0, 4, 0, 0, 0},
      {30, 0, 2, 4, 0, 0, 0},
      {0, 0, 2, 4, 0, 0, 0},
      {0, 0, 0, 1, 0, 0, 0},
      {-1, -1, -1, 1, 0, 0, 0},
      {2, 0, 2, 4, 0, 0, 0},
      {0, int64_t{1} << 40, int64_t{1} << 20, 8, 0, 0, 0},
  };
  for (const Case& c : cases) {
    const std::string text = Batch(c.train, c.micro, c.steps);
    SCOPED_TRACE(text);
    ZeroConfigCaller caller;
    caller.world_size = c.ranks;
    const auto settings = Read(text, caller);
    if (c.want_train == 0) {
      EXPECT_EQ(settings.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_TRUE(absl::StrContains(settings.status().message(), "batch_size"))
          << settings.status();
      continue;
    }
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(settings->train_batch, c.want_train);
    EXPECT_EQ(settings->micro_batch, c.want_micro);
    EXPECT_EQ(settings->accumulation_steps, c.want_steps);
  }
}

TEST(Batch, AutoTakesTheCallersValues) {
  ZeroConfigCaller caller;
  caller.world_size = 2;
  caller.micro_batch = 3;
  caller.accumulation_steps = 5;
  const auto settings = Read(Batch(-1, -1, -1), caller);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->micro_batch, 3);
  EXPECT_EQ(settings->accumulation_steps, 5);
  EXPECT_EQ(settings->train_batch, 30);
}

// Of the notes on what the caller says otherwise.
std::vector<std::string> Contradicted(const ZeroConfigSettings& settings) {
  std::vector<std::string> texts;
  for (const ZeroConfigNote& note : settings.notes) {
    if (note.kind != ZeroConfigNote::Kind::kContradicted) continue;
    texts.push_back(absl::StrCat(note.path, ": ", note.text));
  }
  return texts;
}

TEST(Batch, TheTextGoesBeforeTheCallerAndSaysSo) {
  ZeroConfigCaller caller;
  caller.micro_batch = 3;
  caller.accumulation_steps = 4;
  const auto micro = Read(Batch(0, 2, 4), caller);
  ASSERT_TRUE(micro.ok()) << micro.status();
  EXPECT_EQ(micro->micro_batch, 2);
  EXPECT_EQ(micro->accumulation_steps, 4);
  EXPECT_EQ(Contradicted(*micro),
            (std::vector<std::string>{
                "train_micro_batch_size_per_gpu: 2 in the text; the caller's "
                "micro_batch=3 is not used"}));
}

TEST(Batch, WhatFollowsFromTwoOfTheTextGoesBeforeTheCallerAndSaysSo) {
  ZeroConfigCaller caller;
  caller.accumulation_steps = 5;
  const auto steps = Read(Batch(32, 4, 0), caller);
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ(steps->accumulation_steps, 8);
  EXPECT_EQ(Contradicted(*steps),
            (std::vector<std::string>{
                "gradient_accumulation_steps: 8 follows from train_batch_size "
                "and train_micro_batch_size_per_gpu; the caller's "
                "accumulation_steps=5 is not used"}));
  caller.accumulation_steps = 8;
  EXPECT_TRUE(Contradicted(*Read(Batch(32, 4, 0), caller)).empty());
}

TEST(Batch, TheCallerDividesTheTextsBatch) {
  ZeroConfigCaller caller;
  caller.world_size = 2;
  caller.micro_batch = 4;
  const auto micro = Read(Batch(32, 0, 0), caller);
  ASSERT_TRUE(micro.ok()) << micro.status();
  EXPECT_EQ(micro->micro_batch, 4);
  EXPECT_EQ(micro->accumulation_steps, 4);
  EXPECT_EQ(micro->train_batch, 32);

  ZeroConfigCaller divided;
  divided.accumulation_steps = 8;
  const auto steps = Read(Batch(32, 0, 0), divided);
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ(steps->micro_batch, 4);
  EXPECT_EQ(steps->accumulation_steps, 8);

  ZeroConfigCaller whole;
  whole.train_batch = 12;
  const auto train = Read(Batch(0, 4, 0), whole);
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_EQ(train->accumulation_steps, 3);
}

TEST(Batch, NumbersThatDoNotMultiplyOutAreNamed) {
  ZeroConfigCaller caller;
  caller.world_size = 2;
  caller.micro_batch = 4;
  caller.accumulation_steps = 2;
  EXPECT_EQ(Read(Batch(32, 0, 0), caller).status().message(),
            "train_batch_size 32 is not micro_batch=4 * accumulation_steps=2 * "
            "2 ranks");
  EXPECT_TRUE(Read(Batch(32, -1, 4), caller).ok());
  caller.micro_batch = 5;
  caller.accumulation_steps.reset();
  EXPECT_EQ(Read(Batch(32, 0, 0), caller).status().message(),
            "train_batch_size 32 is not a multiple of micro_batch=5 * 2 ranks "
            "= 10");
  caller.train_batch = 12;
  EXPECT_EQ(Read(Batch(0, 0, 3), caller).status().message(),
            "train_batch=12 is not micro_batch=5 * "
            "gradient_accumulation_steps 3 * 2 ranks");
}

TEST(Batch, ADefaultOfTheCallersStandsForABatchWithoutASizeOnly) {
  ZeroConfigCaller caller;
  caller.micro_batch = 3;
  caller.accumulation_steps = 5;
  caller.defaults = {"micro_batch", "accumulation_steps"};
  const auto train = Read(Batch(32, 0, 0), caller);
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_EQ(train->micro_batch, 32);
  EXPECT_EQ(train->accumulation_steps, 1);
  EXPECT_TRUE(train->notes.size() == 1) << "of steps_per_print";
  EXPECT_EQ(Read(Batch(0, 0, 0), caller)->train_batch, 15);
  EXPECT_EQ(Read(Batch(0, -1, 2), caller)->train_batch, 6);
}

TEST(Batch, WhatTheTextLeavesOutIsTheCallers) {
  ZeroConfigCaller caller;
  caller.world_size = 2;
  caller.micro_batch = 3;
  const auto micro = Read(Batch(0, 0, 0), caller);
  ASSERT_TRUE(micro.ok()) << micro.status();
  EXPECT_EQ(micro->micro_batch, 3);
  EXPECT_EQ(micro->accumulation_steps, 1);
  EXPECT_EQ(micro->train_batch, 6);

  caller.accumulation_steps = 5;
  EXPECT_EQ(Read(Batch(0, 0, 0), caller)->train_batch, 30);
  EXPECT_EQ(Read(Batch(0, 0, 4), caller)->train_batch, 24);
  EXPECT_EQ(Read(Batch(0, 2, 0), caller)->train_batch, 20);

  ZeroConfigCaller whole;
  whole.train_batch = 8;
  EXPECT_EQ(Read(Batch(0, 0, 2), whole)->micro_batch, 4);
}

TEST(Batch, ABatchThatNobodyKnowsNamesWhatToPass) {
  for (const std::string& text : {Batch(0, 0, 0), Batch(-1, -1, -1)}) {
    const auto settings = Read(text);
    EXPECT_EQ(settings.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(settings.status().message(), "micro_batch="))
        << settings.status();
  }
}

TEST(Batch, RefusesACallersValueOfZero) {
  ZeroConfigCaller caller;
  caller.micro_batch = 0;
  EXPECT_EQ(Read(Batch(0, -1, 0), caller).status().code(),
            absl::StatusCode::kInvalidArgument);
  caller.world_size = 0;
  EXPECT_EQ(Read(Batch(0, 1, 0), caller).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace terrace::zero_config_test
