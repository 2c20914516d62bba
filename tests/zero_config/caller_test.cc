// What the caller brings beside the text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
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

ZeroConfigCaller Everything() {
  ZeroConfigCaller caller;
  caller.learning_rate = 0.25;
  caller.beta1 = 0.5;
  caller.beta2 = 0.75;
  caller.epsilon = 1e-6;
  caller.weight_decay = 0.125;
  caller.gradient_clipping = 0.0625;
  caller.warmup_min_lr = 0.01;
  caller.warmup_max_lr = 0.5;
  caller.warmup_num_steps = 7;
  caller.total_num_steps = 70;
  return caller;
}

std::string Sections(const std::string& adam, const std::string& type,
                     const std::string& schedule) {
  return "\"optimizer\": {\"type\": \"AdamW\", \"params\": {" + adam +
         "}}, \"scheduler\": {\"type\": \"" + type + "\", \"params\": {" +
         schedule + "}}";
}

TEST(Caller, ItsNumbersStandForAbsentKeys) {
  for (const char* type : {"WarmupLR", "WarmupDecayLR"}) {
    const auto settings = ReadMembers(Sections("", type, ""), Everything());
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(settings->adam, kOwn);
    EXPECT_EQ(settings->max_gradient_norm, 0.0625);
    EXPECT_EQ(settings->schedule.base, 0.25);
    EXPECT_EQ(settings->schedule.least, 0.01);
    EXPECT_EQ(settings->schedule.most, 0.5);
    EXPECT_EQ(settings->schedule.warmup_steps, 7);
    EXPECT_TRUE(settings->notes.empty());
  }
  const auto cosine =
      ReadMembers(Sections("", "WarmupCosineLR", ""), Everything());
  ASSERT_TRUE(cosine.ok()) << cosine.status();
  EXPECT_TRUE(HasNote(*cosine, "scheduler", NoteKind::kIgnored));
  EXPECT_EQ(cosine->schedule.warmup_steps, 7);
  EXPECT_EQ(cosine->schedule.total_steps, 70);
}

TEST(Caller, ItsDefaultsStandForAutoOnly) {
  ZeroConfigCaller caller = Everything();
  caller.defaults = {"beta1",         "epsilon",          "weight_decay",
                     "warmup_max_lr", "warmup_num_steps", "gradient_clipping"};
  const auto settings = ReadMembers(
      Sections("\"weight_decay\": \"auto\"", "WarmupLR", ""), caller);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->adam->beta1, 0.9);
  EXPECT_EQ(settings->adam->beta2, 0.75);
  EXPECT_EQ(settings->adam->epsilon, 1e-8);
  EXPECT_EQ(settings->adam->weight_decay, 0.125);
  EXPECT_EQ(settings->schedule.most, 0.25);
  EXPECT_EQ(settings->schedule.warmup_steps, 1000);
  EXPECT_EQ(settings->max_gradient_norm, 1.0);
  // Nor do they contradict anything.
  EXPECT_TRUE(ReadMembers("\"gradient_clipping\": 2, " +
                              Sections("\"eps\": 1, \"betas\": [0.9, 0.75]",
                                       "WarmupLR", "\"warmup_num_steps\": 3"),
                          caller)
                  ->notes.empty());
}

TEST(Caller, WhatItContradictsIsNoted) {
  const std::string members =
      "\"gradient_clipping\": 2, " +
      Sections(
          "\"lr\": 0.5, \"betas\": [0.9, 0.75], \"eps\": \"1e-5\", "
          "\"weight_decay\": 0",
          "WarmupDecayLR",
          "\"warmup_min_lr\": 0.02, \"warmup_max_lr\": 0.5, "
          "\"warmup_num_steps\": 8, \"total_num_steps\": 71");
  const auto settings = ReadMembers(members, Everything());
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->adam->learning_rate, 0.5);
  EXPECT_EQ(settings->schedule.warmup_steps, 8);
  for (const char* path :
       {"gradient_clipping", "optimizer.params.lr", "optimizer.params.betas",
        "optimizer.params.eps", "optimizer.params.weight_decay",
        "scheduler.params.warmup_min_lr", "scheduler.params.warmup_num_steps",
        "scheduler.params.total_num_steps"}) {
    EXPECT_TRUE(HasNote(*settings, path, NoteKind::kContradicted)) << path;
  }
  EXPECT_EQ(settings->notes.size(), 8u);  // what agrees is not noted
  EXPECT_EQ(settings->notes[0].text,
            "0.5 in the text; the caller's learning_rate=0.25 is not used");
}

TEST(Caller, AWarmupThatNobodyTakesIsNoted) {
  const auto none =
      ReadMembers("\"optimizer\": {\"type\": \"AdamW\"}", Everything());
  ASSERT_TRUE(none.ok()) << none.status();
  ASSERT_EQ(none->notes.size(), 1u);
  EXPECT_EQ(none->notes[0].path, "scheduler");
  EXPECT_EQ(none->notes[0].text,
            "has no use for the caller's warmup_min_lr=, warmup_max_lr=, "
            "warmup_num_steps=: it is not in the text");
}

TEST(Caller, ParametersInCpuMemoryAreOffloadedThereAlready) {
  const auto zero = [](const std::string& members) {
    return "\"zero_optimization\": {\"stage\": 3, " + members + "}";
  };
  ZeroConfigCaller caller;
  caller.model.parameters = ZeroConfigCaller::Parameters::kInCpuMemory;
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

TEST(Caller, ParametersAreOffloadedWhereTheCallerDoesIt) {
  ZeroConfigCaller caller;
  caller.model.parameters = ZeroConfigCaller::Parameters::kOffloaded;
  const auto read = [&](const std::string& param) {
    return ReadMembers(
        "\"zero_optimization\": {\"stage\": 3, "
        "\"offload_param\": " +
            param + "}",
        caller);
  };
  const auto one = read("{\"device\": \"nvme\", \"nvme_path\": \"/a\"}");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->callers.parameters.device, OffloadDevice::kNvme);
  EXPECT_EQ(one->callers.parameters.paths, std::vector<std::string>{"/a"});
  EXPECT_EQ(one->offload_device, OffloadDevice::kNone);  // of the state
  EXPECT_TRUE(one->nvme_paths.empty());
  const auto two =
      read("{\"device\": \"nvme\", \"nvme_path\": [\"/a\", \"/b\"]}");
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->callers.parameters.paths,
            (std::vector<std::string>{"/a", "/b"}));
  const auto none = read("{\"device\": \"none\"}");
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->callers.parameters.device, OffloadDevice::kNone);
  EXPECT_TRUE(none->callers.parameters.paths.empty());
  const auto cpu = read("{\"device\": \"cpu\"}");
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_EQ(cpu->callers.parameters.device, OffloadDevice::kCpu);
  EXPECT_TRUE(cpu->callers.parameters.paths.empty());
  EXPECT_FALSE(HasNote(*cpu, "zero_optimization.offload_param.device",
                       NoteKind::kMeaning));
  EXPECT_EQ(read("{\"device\": \"nvme\"}").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Caller, BelowStage3NoParametersAreOffloaded) {
  ZeroConfigCaller caller;
  caller.model.parameters = ZeroConfigCaller::Parameters::kOffloaded;
  for (const char* param : {"{\"device\": \"cpu\"}",
                            "{\"device\": \"nvme\", \"nvme_path\": \"/a\"}"}) {
    const auto settings =
        ReadMembers(absl::StrCat("\"zero_optimization\": {\"stage\": 2, ",
                                 "\"offload_param\": ", param, "}"),
                    caller);
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(settings->callers.parameters.device, OffloadDevice::kNone);
    EXPECT_TRUE(settings->callers.parameters.paths.empty());
    EXPECT_TRUE(HasNote(*settings, "zero_optimization.offload_param.device",
                        NoteKind::kIgnored));
  }
}

TEST(Caller, SeveralRanksOffloadNoParameters) {
  ZeroConfigCaller caller;
  caller.model.parameters = ZeroConfigCaller::Parameters::kOffloaded;
  caller.world_size = 2;
  caller.shares_state = true;
  const auto settings = ReadMembers(
      "\"zero_optimization\": {\"stage\": 3, "
      "\"offload_param\": {\"device\": \"cpu\"}}",
      caller);
  EXPECT_EQ(settings.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(settings.status().message()),
              testing::HasSubstr("zero_optimization.stage"));
}

TEST(Caller, OffloadsToNvmeWithoutBeingAskedTwice) {
  ZeroConfigCaller caller;
  caller.model.parameters = ZeroConfigCaller::Parameters::kOffloadedToNvme;
  const auto read = [&](const char* device) {
    return ReadMembers(std::string("\"zero_optimization\": {\"stage\": 3, "
                                   "\"offload_param\": {\"device\": \"") +
                           device + "\", \"nvme_path\": \"/a\"}}",
                       caller);
  };
  const auto nvme = read("nvme");
  ASSERT_TRUE(nvme.ok()) << nvme.status();
  EXPECT_EQ(nvme->callers.parameters.device, OffloadDevice::kNvme);
  EXPECT_EQ(nvme->callers.parameters.paths, std::vector<std::string>{"/a"});
  // Those in CPU memory are on the "cpu" already.
  const auto cpu = read("cpu");
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_EQ(cpu->callers.parameters.device, OffloadDevice::kNone);
}

TEST(Caller, ItsOptimizersTakeTheirParamsAsTheyAre) {
  ZeroConfigCaller caller;
  caller.model.optimizers = {"SGD", "Adagrad"};
  caller.learning_rate = 0.5;
  const auto read = [&](const char* type, const char* params) {
    return ReadMembers(std::string("\"optimizer\": {\"type\": \"") + type +
                           "\", \"params\": {" + params + "}}",
                       caller);
  };
  const auto sgd = read("SGD",
                        "\"lr\": \"auto\", \"momentum\": 0.9, "
                        "\"weight_decay\": \"auto\", \"nesterov\": true");
  ASSERT_TRUE(sgd.ok()) << sgd.status();
  EXPECT_FALSE(sgd->adam.has_value());
  EXPECT_EQ(sgd->callers.optimizer->type, "SGD");
  EXPECT_EQ(sgd->callers.optimizer->params,
            "{\"lr\":0.5,\"momentum\":0.9,\"nesterov\":true}");
  EXPECT_EQ(sgd->schedule.base, 0.5);
  EXPECT_EQ(read("adaGrad", "")->callers.optimizer->type, "Adagrad");
  // Torch's names have one spelling.
  EXPECT_FALSE(read("sgd", "").ok());
  EXPECT_FALSE(read("SGD", "\"lr\": \"fast\"").ok());
  caller.learning_rate.reset();
  EXPECT_FALSE(read("SGD", "\"lr\": \"auto\"").ok());
}

TEST(Caller, AModelThatItCastsMayBeOfAnotherType) {
  ZeroConfigCaller caller;
  caller.parameter_dtype = DType::kFloat32;
  caller.model.is_cast = true;
  for (const char* type : {"bf16", "fp16"}) {
    const auto settings = ReadMembers(
        std::string("\"data_types\": {\"buffer_dtype\": \"bf16\"}, \"") + type +
            "\": {\"enabled\": true}",
        caller);
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(settings->callers.buffer_dtype, DType::kBFloat16);
  }
  // A text that enables neither casts nothing.
  caller.parameter_dtype = DType::kBFloat16;
  EXPECT_FALSE(ReadMembers("\"bf16\": {\"enabled\": false}", caller).ok());
}

}  // namespace
}  // namespace terrace::zero_config_test
