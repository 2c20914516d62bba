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

TEST(Batch, TheTextGoesBeforeTheCaller) {
  ZeroConfigCaller caller;
  caller.micro_batch = 3;
  caller.accumulation_steps = 5;
  const auto micro = Read(Batch(0, 2, 4), caller);
  ASSERT_TRUE(micro.ok()) << micro.status();
  EXPECT_EQ(micro->micro_batch, 2);
  EXPECT_EQ(micro->accumulation_steps, 4);
  // All of the batch follows from the text.
  const auto train = Read(Batch(32, 0, 0), caller);
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_EQ(train->micro_batch, 32);
  EXPECT_EQ(train->accumulation_steps, 1);
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
