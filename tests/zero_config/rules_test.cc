// How the text is read at all: JSON, lines, spellings, "auto".
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "tests/zero_config/key_rows.h"

namespace terrace::zero_config_test {
namespace {

using NoteKind = ZeroConfigNote::Kind;

void ExpectInvalid(const std::string& text,
                   const std::vector<std::string>& parts) {
  SCOPED_TRACE(text);
  const auto settings = Read(text);
  ASSERT_EQ(settings.status().code(), absl::StatusCode::kInvalidArgument)
      << settings.status();
  for (const std::string& part : parts) {
    EXPECT_TRUE(absl::StrContains(settings.status().message(), part))
        << settings.status();
  }
}

TEST(Rules, TextThatIsNotJsonNamesLineAndColumn) {
  ExpectInvalid("", {"line 1"});
  ExpectInvalid("{\n\"a\": 1,\n,}", {"line 3"});
  ExpectInvalid("{\"a\": 1} 2", {"line 1", "column 10"});
  ExpectInvalid("{\n\"gradient_clipping\": NaN}", {"line 2"});
  ExpectInvalid("{\"gradient_clipping\": Infinity}", {"line 1"});
  ExpectInvalid("{\n\n\"gradient_clipping\": 1e400}", {"1e400", "line 3"});
  ExpectInvalid("{'a': 1}", {"line 1"});
  ExpectInvalid("{\"a\": \"\xff\"}", {"UTF-8"});
}

TEST(Rules, OnlyAnObjectIsAConfiguration) {
  ExpectInvalid("[]", {"not an object"});
  ExpectInvalid("3", {"not an object"});
  ExpectInvalid("null", {"not an object"});
}

TEST(Rules, CommentsAreSkipped) {
  const auto settings =
      Read("// a comment\n{ /* another */ \"train_batch_size\": 8 // third\n}");
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->train_batch, 8);
}

TEST(Rules, ACommaAfterTheLastOneIsSkipped) {
  const auto settings = Read(
      "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": [0.5, "
      "0.75, // the second\n ], }, },\n"
      "\"my_own_texts\": [\",]\", \"a\\\",}\"] , /* last, */ \n"
      "\"train_batch_size\": 8 /* } */ , // ]\n}");
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->train_batch, 8);
  EXPECT_EQ(settings->adam->beta2, 0.75);
}

TEST(Rules, OnlyACommaAfterAValueIsSkipped) {
  for (const char* text :
       {"{,}", "{\"a\": [,]}", "{\"a\": 1,,}", "{\"a\": [1,,]}", "{\"a\":,}",
        "{\"a\": 1},", ",", "{\"a\",}"}) {
    ExpectInvalid(text, {"line 1"});
  }
}

TEST(Rules, ACommaThatIsSkippedMovesNoLineAndNoColumn) {
  ExpectInvalid("{\"a\": [1,\n], x}", {"line 2", "column 4"});
  ExpectInvalid("{\"a\": [1,\n],\n\"gradient_clipping\": -7}",
                {"gradient_clipping: -7 (line 3)"});
}

TEST(Rules, AKeyGivenTwiceNamesBothLines) {
  ExpectInvalid("{\"train_batch_size\": 8,\n\n\"train_batch_size\": 8}",
                {"line 3", "\"train_batch_size\"", "first on line 1"});
  ExpectInvalid("{\n\"zero_optimization\": {\n\"stage\": 1,\n\"stage\": 1}}",
                {"line 4", "\"stage\"", "first on line 3"});
}

TEST(Rules, TheLineOfABadValueIsThatOfItsKey) {
  ExpectInvalid("{\n\"a_b_c\": 1,\n\"gradient_clipping\":\n-7\n}",
                {"gradient_clipping: -7 (line 3)"});
  ExpectInvalid("{\"steps_per_print\": 7\n,\"gradient_clipping\": -7}",
                {"(line 2)"});
}

TEST(Rules, TextsAreQuotedWithinOneLine) {
  ExpectInvalid("{\"gradient_clipping\": \"a\\nb\\\"\"}", {"\"a\\nb\\\"\""});
  const auto status = Read("{\"gradient_clipping\": \"a\\nb\"}").status();
  EXPECT_FALSE(absl::StrContains(status.message(), "\n"));
}

TEST(Rules, AStrangeKeyStaysWithinTheLine) {
  for (const char* text :
       {"{\"train_batch_si\\nze\": 1}", "{\"bf16\": {\"a\\nb\": 1}}",
        "{\"a\\nb\": 1, \"a\\nb\": 1}"}) {
    ExpectInvalid(text, {"line 1"});
    EXPECT_FALSE(absl::StrContains(Read(text).status().message(), "\n"));
  }
  const auto noted = ReadMembers("\"some\\nthing\": 1");
  ASSERT_TRUE(noted.ok()) << noted.status();
  EXPECT_EQ(noted->notes[0].path, "\"some\\nthing\"");
}

TEST(Rules, LongValuesAreShortenedBetweenCharacters) {
  std::string value;
  for (int i = 0; i < 100; ++i) value += "\xC3\xA4";
  const auto status =
      Read("{\"gradient_clipping\": \"" + value + "\"}").status();
  EXPECT_LT(status.message().size(), 200u);
  EXPECT_TRUE(absl::StrContains(status.message(), "\xC3\xA4... (line 1)"))
      << status;
}

TEST(Rules, DeepNestingIsRefusedNotFollowed) {
  ExpectInvalid(std::string(100000, '['), {"levels"});
  std::string deep = "{\"a\": ";
  for (int i = 0; i < 70; ++i) deep += "{\"a\": ";
  ExpectInvalid(deep, {"levels"});
}

TEST(Rules, ANearMissAtTheTopIsAnError) {
  ExpectInvalid("{\"train_batch_size\": 1, \"zero_optimisation\": {}}",
                {"did you mean \"zero_optimization\"?", "zero_optimisation"});
  ExpectInvalid("{\"train_batch_sise\": 1}",
                {"did you mean \"train_batch_size\"?"});
}

TEST(Rules, OtherUnknownKeysAtTheTopAreOneNote) {
  const auto settings =
      ReadMembers("\"my_own_settings\": {}, \"remarks_of_mine\": 3");
  ASSERT_TRUE(settings.ok()) << settings.status();
  ASSERT_EQ(settings->notes.size(), 1u);
  EXPECT_EQ(settings->notes[0].path, "my_own_settings, remarks_of_mine");
}

TEST(Rules, UnknownKeysBelowAreErrorsWithTheirPath) {
  ExpectInvalid(
      "{\"train_batch_size\": 1, \"zero_optimization\": "
      "{\"offload_optimizer\": {\"devise\": \"cpu\"}}}",
      {"zero_optimization.offload_optimizer.devise",
       "did you mean \"device\"?"});
  ExpectInvalid("{\"bf16\": {\"foo\": 1}}", {"bf16.foo", "enabled"});
}

TEST(Rules, NoMessageListsKeysByTheDozen) {
  for (const ZeroConfigKey& key : ZeroConfigKeys()) {
    if (key.allowed != "an object") continue;
    const std::string path = key.path + ".qqqqqq";
    const auto status =
        Read(TextOf({path.c_str(), "1", Expect::kInvalid})).status();
    EXPECT_LT(status.message().size(), 200u) << status;
  }
  const auto status = ReadMembers(
                          "\"scheduler\": {\"type\": \"OneCycle\", \"params\": "
                          "{\"warmup_num_steps\": 3}}")
                          .status();
  EXPECT_LT(status.message().size(), 200u) << status;
}

TEST(Rules, OfATextWithoutLinesNoMessageNamesOne) {
  ZeroConfigCaller caller;
  caller.text_has_lines = false;
  for (const char* members :
       {"\"gradient_clipping\": -1", "\"gradient_cliping\": 1",
        "\"aio\": {\"queue_dept\": 1}", "\"optimizer\": {\"type\": \"Lion\"}",
        "\"optimizer\": {\"type\": \"AdamX\"}",
        "\"scheduler\": {\"type\": \"None\"}",
        "\"bf16\": {\"enabled\": true}, \"bfloat16\": {}",
        "\"zero_optimization\": {\"cpu_offload\": 1, \"offload_optimizer\": "
        "{}}"}) {
    const auto with = ReadMembers(members);
    const auto without = ReadMembers(members, caller);
    EXPECT_TRUE(absl::StrContains(with.status().message(), "line 1)"))
        << with.status();
    EXPECT_FALSE(without.ok()) << members;
    EXPECT_FALSE(absl::StrContains(without.status().message(), "line"))
        << without.status();
  }
}

TEST(Rules, WhatTheCallerLeavesOutIsNamedAsItIsPassed) {
  ExpectInvalid(
      "{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"AdamW\", "
      "\"params\": {\"lr\": \"auto\"}}}",
      {"optimizer.params.lr", "learning_rate="});
  for (const char* name : {"warmup_num_steps", "total_num_steps"}) {
    const std::string other = name == std::string("total_num_steps")
                                  ? "\"warmup_num_steps\": 3, "
                                  : "\"total_num_steps\": 3, ";
    ExpectInvalid(
        "{\"train_batch_size\": 1, \"scheduler\": {\"type\": "
        "\"WarmupDecayLR\", \"params\": {" +
            other + "\"" + name + "\": \"auto\"}}}",
        {std::string("scheduler.params.") + name, std::string(name) + "="});
  }
  ExpectInvalid(
      "{\"train_batch_size\": 1, \"scheduler\": {\"type\": \"WarmupLR\", "
      "\"params\": {\"warmup_num_steps\": 3}}}",
      {"learning_rate="});
}

TEST(Rules, AutoDropsAKeyToItsDefault) {
  const auto settings = ReadMembers(
      "\"gradient_clipping\": \"auto\", \"aio\": {\"block_size\": \"auto\"}, "
      "\"zero_optimization\": {\"stage\": \"auto\", \"sub_group_size\": "
      "\"auto\", \"reduce_bucket_size\": \"auto\"}");
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->max_gradient_norm, 1.0);
  EXPECT_EQ(settings->stage, 0);
  EXPECT_EQ(settings->aio.block_size, 1048576);
  EXPECT_FALSE(settings->update.sub_group_size.has_value());
  EXPECT_TRUE(settings->notes.empty());
}

TEST(Rules, AliasesAreReadAndNeverBesideTheirName) {
  for (const char* alias :
       {"prefetch_bucket_size", "max_reuse_distance", "max_live_parameters",
        "param_persistence_threshold", "model_persistence_threshold",
        "module_granularity_threshold", "use_all_reduce_for_fetch_params",
        "allgather_sequential", "gather_16bit_weights_on_model_save"}) {
    const std::string one = std::string("\"") + alias + "\": 1";
    const auto settings = ReadMembers("\"zero_optimization\": {" + one + "}");
    ASSERT_TRUE(settings.ok()) << settings.status();
    ASSERT_EQ(settings->notes.size(), 1u);
    EXPECT_EQ(settings->notes[0].path,
              std::string("zero_optimization.stage3_") + alias);
    ExpectInvalid("{\"train_batch_size\": 1, \"zero_optimization\": {" + one +
                      ", \"stage3_" + alias + "\": 1}}",
                  {"given twice", alias});
  }
}

TEST(Rules, DeprecatedKeysAreForwardedWithANote) {
  const auto settings = ReadMembers(
      "\"bfloat16\": {\"enabled\": true}, \"zero_optimization\": "
      "{\"stage3_gather_fp16_weights_on_model_save\": true}");
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->parameter_dtype, DType::kBFloat16);
  ASSERT_EQ(settings->notes.size(), 3u);
  EXPECT_EQ(settings->notes[0].path, "bfloat16");
  EXPECT_EQ(settings->notes[0].kind, NoteKind::kDeprecated);
  EXPECT_EQ(settings->notes[1].kind, NoteKind::kDeprecated);
}

TEST(Rules, ADeprecatedKeyBesideTheNewOneMustAgree) {
  const std::string now = "\"bf16\": {\"enabled\": true}";
  EXPECT_TRUE(ReadMembers("\"bfloat16\": {\"enabled\": true}, " + now).ok());
  EXPECT_TRUE(ReadMembers(now + ", \"bfloat16\": {\"enabled\": true}").ok());
  ExpectInvalid("{" + now + ", \"bfloat16\": {\"enabled\": false}}",
                {"bfloat16", "given twice"});

  const std::string offload =
      "\"offload_optimizer\": {\"device\": \"cpu\"}, \"cpu_offload\": ";
  const std::string zero = "\"zero_optimization\": {" + offload;
  const auto agreed = ReadMembers(zero + "true}");
  ASSERT_TRUE(agreed.ok()) << agreed.status();
  EXPECT_EQ(agreed->offload_device, OffloadDevice::kCpu);
  ExpectInvalid("{\"train_batch_size\": 1, " + zero + "false}}",
                {"cpu_offload", "contradicts", "offload_optimizer.device"});
}

TEST(Rules, TheOldBooleansMeanTheirSections) {
  const auto off = ReadMembers("\"zero_optimization\": false");
  const auto on =
      ReadMembers("\"zero_optimization\": true, \"allgather_size\": 500");
  const auto cpu =
      ReadMembers("\"zero_optimization\": {\"cpu_offload\": true}");
  ASSERT_TRUE(off.ok() && on.ok() && cpu.ok());
  EXPECT_EQ(off->stage, 0);
  EXPECT_EQ(on->stage, 1);
  EXPECT_EQ(cpu->offload_device, OffloadDevice::kCpu);
}

}  // namespace
}  // namespace terrace::zero_config_test
