// What the caller brings beside the text.
#include <gtest/gtest.h>

#include "tests/zero_config/key_rows.h"

namespace terrace::zero_config_test {
namespace {

using NoteKind = ZeroConfigNote::Kind;

constexpr AdamOptions kOwn = {.learning_rate = 0.25,
                              .beta1 = 0.5,
                              .beta2 = 0.75,
                              .epsilon = 1e-6,
                              .weight_decay = 0.125};

bool HasNote(const ZeroConfigSettings& settings, const std::string& path,
             NoteKind kind) {
  for (const ZeroConfigNote& note : settings.notes) {
    if (note.path == path && note.kind == kind) return true;
  }
  return false;
}

TEST(Caller, ItsAdamStandsForAnOptimizerThatIsNotInTheText) {
  ZeroConfigCaller caller;
  EXPECT_FALSE(ReadMembers("\"dump_state\": true", caller)->adam.has_value());
  caller.adam = kOwn;
  for (const char* members : {"\"dump_state\": true", "\"optimizer\": null"}) {
    const auto settings = ReadMembers(members, caller);
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(settings->adam, kOwn);
    EXPECT_EQ(LearningRateAt(settings->schedule, 3), 0.25);
    EXPECT_TRUE(HasNote(*settings, "optimizer", NoteKind::kMeaning));
  }
}

TEST(Caller, ItsAdamGivesWayToTheTexts) {
  ZeroConfigCaller caller;
  caller.adam = kOwn;
  const auto settings = ReadMembers(
      "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.5}}",
      caller);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->adam->learning_rate, 0.5);
  EXPECT_EQ(settings->adam->beta1, 0.9);
  EXPECT_FALSE(HasNote(*settings, "optimizer", NoteKind::kMeaning));
}

TEST(Caller, ItsAdamsRateIsTheSchedules) {
  ZeroConfigCaller caller;
  caller.adam = kOwn;
  const auto settings = ReadMembers(
      "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
      "{\"warmup_num_steps\": 4}}",
      caller);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(LearningRateAt(settings->schedule, 20), 0.25);
}

TEST(Caller, ParametersInCpuMemoryAreOffloadedThereAlready) {
  const auto zero = [](const std::string& members) {
    return "\"zero_optimization\": {\"stage\": 3, " + members + "}";
  };
  ZeroConfigCaller caller;
  caller.parameters_in_cpu_memory = true;
  const auto cpu =
      ReadMembers(zero("\"offload_param\": {\"device\": \"cpu\"}"), caller);
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_TRUE(HasNote(*cpu, "zero_optimization.offload_param.device",
                      NoteKind::kMeaning));
  const auto old = ReadMembers(zero("\"cpu_offload_param\": true"), caller);
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_TRUE(
      HasNote(*old, "zero_optimization.cpu_offload_param", NoteKind::kMeaning));
  const auto nvme = ReadMembers(
      zero("\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/a\"}"),
      caller);
  EXPECT_EQ(nvme.status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace terrace::zero_config_test
