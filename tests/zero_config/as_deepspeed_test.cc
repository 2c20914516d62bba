// What DeepSpeed does with a key that has no say in its results, or that it
// refuses, is done here too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/zero_config/key_rows.h"

namespace terrace::zero_config_test {
namespace {

using NoteKind = ZeroConfigNote::Kind;
using testing::HasSubstr;
using testing::Not;

// The notes on a key, or on several at once.
std::vector<ZeroConfigNote> NotesOn(const ZeroConfigSettings& settings,
                                    const std::string& path) {
  std::vector<ZeroConfigNote> notes;
  for (const ZeroConfigNote& note : settings.notes) {
    if (absl::StrCat(", ", note.path, ",")
            .find(absl::StrCat(", ", path, ",")) != std::string::npos) {
      notes.push_back(note);
    }
  }
  return notes;
}

// Members of the top level that are taken, with one note on that key.
void ExpectNoted(const std::string& members, const std::string& path,
                 const ZeroConfigCaller& caller = {}) {
  SCOPED_TRACE(members);
  const auto settings = ReadMembers(members, caller);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(NotesOn(*settings, path).size(), 1u) << path;
}

void ExpectRefused(const std::string& members, absl::StatusCode code,
                   const std::vector<std::string>& parts,
                   const ZeroConfigCaller& caller = {}) {
  SCOPED_TRACE(members);
  const auto settings = ReadMembers(members, caller);
  EXPECT_EQ(settings.status().code(), code) << settings.status();
  for (const std::string& part : parts) {
    EXPECT_THAT(std::string(settings.status().message()), HasSubstr(part));
  }
}

std::string Zero(const std::string& members) {
  return absl::StrCat("\"zero_optimization\": {", members, "}");
}

TEST(AsDeepSpeed, AnAutoDeviceIsNone) {
  for (const char* section : {"offload_optimizer", "offload_param"}) {
    const auto settings = ReadMembers(Zero(
        absl::StrCat("\"stage\": 3, \"", section,
                     "\": {\"device\": \"auto\", \"nvme_path\": \"auto\"}")));
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(settings->offload_device, OffloadDevice::kNone);
    EXPECT_EQ(settings->callers.parameters.device, OffloadDevice::kNone);
  }
  ExpectRefused(Zero("\"offload_optimizer\": {\"device\": \"nvme\", "
                     "\"nvme_path\": \"auto\"}"),
                absl::StatusCode::kInvalidArgument,
                {"zero_optimization.offload_optimizer.nvme_path"});
}

TEST(AsDeepSpeed, WhatChangesNoResultIsNoted) {
  const std::string activations = "activation_checkpointing";
  for (const char* value : {"false", "true", "2.5", "\"many\""}) {
    ExpectNoted(absl::StrCat("\"", activations,
                             "\": {\"number_checkpoints\": ", value, "}"),
                activations + ".number_checkpoints");
  }
  ExpectNoted("\"autotuning\": {\"enabled\": true}", "autotuning");
  ExpectNoted("\"pipeline\": {\"stages\": \"auto\"}", "pipeline");
  ExpectNoted("\"data_efficiency\": {\"enabled\": true}", "data_efficiency");
  ExpectNoted("\"data_types\": {\"keep_in_fp32_modules\": [\"router\"]}",
              "data_types.keep_in_fp32_modules");
  ExpectNoted("\"fp16\": {\"enabled\": true, \"auto_cast\": true}",
              "fp16.auto_cast");
  ExpectNoted("\"log_level\": \"info\"", "log_level");
  ExpectNoted("\"disable_python_gc\": true", "disable_python_gc");
  for (const char* key : {"parameter_alignment", "zero_quantized_gradients"}) {
    ExpectNoted(Zero(absl::StrCat("\"", key, "\": true")),
                absl::StrCat("zero_optimization.", key));
  }
  ExpectNoted(Zero("\"zero_hpz_partition_size\": 8"),
              "zero_optimization.zero_hpz_partition_size");
}

TEST(AsDeepSpeed, WhatOneRankDoesNotQuantizeSeveralDo) {
  ZeroConfigCaller caller;
  caller.world_size = 2;
  caller.shares_state = true;
  for (const char* member :
       {"\"zero_quantized_gradients\": true", "\"zero_hpz_partition_size\": 2"})
    ExpectRefused(Zero(member), absl::StatusCode::kUnimplemented,
                  {"zero_optimization.zero_"}, caller);
}

TEST(AsDeepSpeed, KeysBesideThoseThatItLooksUpAreNoted) {
  for (const char* section :
       {"aio", "activation_checkpointing", "checkpoint", "data_types",
        "checkpoint.writer", "optimizer", "scheduler"}) {
    const std::string path = absl::StrCat(section, ".remarks_of_mine");
    const std::string type =
        std::string(section) == "optimizer"   ? "\"type\": \"AdamW\", "
        : std::string(section) == "scheduler" ? "\"type\": \"OneCycle\", "
                                                "\"params\": {\"cycle_min_lr\":"
                                                " 0, \"cycle_max_lr\": 1}, "
                                              : "";
    const Row row = {path.c_str(), "1", Expect::kIgnored, "", type.c_str()};
    const auto settings = Read(TextOf(row));
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(NotesOn(*settings, path).size(), 1u) << path;
  }
  ExpectNoted("\"optimizer\": {\"type\": \"AdamW\", \"eps\": 1e-6}",
              "optimizer.eps");
}

TEST(AsDeepSpeed, ANearMissIsAtMostTwoEditsAway) {
  for (const char* member :
       {"\"steps_per_printing\": 1", "\"checkpoints_dir\": 1",
        "\"gradient_accumulation\": 1", "\"optimizers_used\": 1",
        "\"timing\": 1", "\"wandb_group\": 1", "\"zero_optimized\": 1"}) {
    const auto settings = ReadMembers(member);
    EXPECT_TRUE(settings.ok()) << settings.status();
  }
  for (const char* member :
       {"\"zero_optimisation\": {}", "\"gradient_cliping\": 1",
        "\"optimzer\": {}", "\"fp_16\": {}", "\"steps_perprimt\": 1",
        "\"aio\": {\"queue_dept\": 1}",
        "\"checkpoint\": {\"tag_validatoin\": \"FAIL\"}",
        "\"optimizer\": {\"type\": \"AdamW\", \"parms\": {}}"}) {
    ExpectRefused(member, absl::StatusCode::kInvalidArgument, {"did you mean"});
  }
}

TEST(AsDeepSpeed, AllUnknownKeysAreNamedAtOnce) {
  ExpectRefused(
      "\"gradient_cliping\": 1,\n\"zero_optimization\": {\"stge\": 1,\n"
      "\"offload_param\": {\"qqqqqq\": 2}},\n\"bf16\": {\"zzzzzz\": 3}, "
      "\"steps_per_print\": \"often\"",
      absl::StatusCode::kInvalidArgument,
      {"gradient_cliping (line 1)", "\"gradient_clipping\"",
       "zero_optimization.stge (line 2)", "\"stage\"",
       "zero_optimization.offload_param.qqqqqq (line 3)",
       "bf16.zzzzzz (line 4)"});
}

TEST(AsDeepSpeed, AnUnknownWarmupIsLogarithmic) {
  for (const char* type : {"cosine", "Linear", ""}) {
    const std::string members = absl::StrCat(
        "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
        "{\"warmup_max_lr\": 1, \"warmup_num_steps\": 9, \"warmup_type\": \"",
        type, "\"}}");
    ExpectNoted(members, "scheduler.params.warmup_type");
    EXPECT_TRUE(ReadMembers(members)->schedule.logarithmic);
  }
}

TEST(AsDeepSpeed, GradientsSummedInFp32AreTheSameForOneMicroBatch) {
  const auto members = [](const char* type, int stage, int steps) {
    return absl::StrCat("\"", type,
                        "\": {\"enabled\": true}, \"data_types\": "
                        "{\"grad_accum_dtype\": \"fp32\"}, "
                        "\"gradient_accumulation_steps\": ",
                        steps, ", ", Zero(absl::StrCat("\"stage\": ", stage)));
  };
  for (const char* type : {"bf16", "fp16"}) {
    for (const int stage : {1, 2, 3}) {
      const auto settings = ReadMembers(members(type, stage, 1));
      EXPECT_TRUE(settings.ok()) << settings.status();
      ExpectRefused(members(type, stage, 2), absl::StatusCode::kUnimplemented,
                    {"data_types.grad_accum_dtype"});
    }
    // As DeepSpeed has it.
    ExpectRefused(members(type, 0, 1), absl::StatusCode::kUnimplemented,
                  {"data_types.grad_accum_dtype"});
  }
}

TEST(AsDeepSpeed, TypesHaveTorchsNamesToo) {
  for (const char* name : {"bfloat16", "torch.bfloat16", "bf16"}) {
    const auto settings = ReadMembers(
        absl::StrCat("\"bf16\": {\"enabled\": true}, \"data_types\": "
                     "{\"grad_accum_dtype\": \"",
                     name, "\", \"param_dtype\": \"", name, "\"}"));
    EXPECT_TRUE(settings.ok()) << settings.status();
  }
}

TEST(AsDeepSpeed, AStepWithoutANormIsFollowedWhereItIsTaken) {
  const auto members = [](int stage, const char* clipping, const char* more) {
    return absl::StrCat("\"gradient_clipping\": ", clipping, ", ",
                        Zero(absl::StrCat("\"compute_grad_norm\": false, "
                                          "\"stage\": ",
                                          stage, more)));
  };
  const std::string key = "zero_optimization.compute_grad_norm";
  ExpectNoted(members(1, "0", ""), key);
  ExpectNoted(members(2, "0.0", ""), key);
  for (const std::string& refused :
       {members(0, "0", ""), members(3, "0", ""), members(2, "1.0", ""),
        members(1, "0", ", \"offload_optimizer\": {\"device\": \"cpu\"}")}) {
    ExpectRefused(refused, absl::StatusCode::kInvalidArgument, {key});
  }
}

TEST(AsDeepSpeed, ItsRefusalsAreOurs) {
  const auto warmup = [](const char* type, const char* steps) {
    return absl::StrCat(
        "\"optimizer\": {\"type\": \"AdamW\"}, \"scheduler\": {\"type\": \"",
        type, "\", \"params\": {\"total_num_steps\": 9, ",
        "\"warmup_num_steps\": ", steps, "}}");
  };
  for (const char* type : {"WarmupDecayLR", "WarmupCosineLR"}) {
    ExpectRefused(warmup(type, "0"), absl::StatusCode::kInvalidArgument,
                  {"scheduler.params.warmup_num_steps"});
  }
  for (const char* scale : {"0.5", "1.5", "true"}) {
    ExpectRefused(absl::StrCat("\"fp16\": {\"min_loss_scale\": ", scale, "}"),
                  absl::StatusCode::kInvalidArgument, {"fp16.min_loss_scale"});
  }
  for (const char* key : {"min_loss_scale", "loss_scale_window"}) {
    ExpectRefused(
        absl::StrCat("\"fp16\": {\"enabled\": true, \"", key, "\": 0}"),
        absl::StatusCode::kInvalidArgument, {absl::StrCat("fp16.", key)});
  }
  for (const char* value : {"{}", "{\"enabled\": false}", "true"}) {
    ExpectRefused(absl::StrCat("\"amp\": ", value),
                  absl::StatusCode::kInvalidArgument, {"amp", "bf16"});
  }
}

// Where DeepSpeed computes with a number as the file has it, and fails.
TEST(AsDeepSpeed, TextIsNoNumberThere) {
  for (const char* key : {"train_batch_size", "train_micro_batch_size_per_gpu",
                          "gradient_accumulation_steps", "gradient_clipping"}) {
    const auto settings =
        ReadZeroConfig(absl::StrCat("{\"", key, "\": \"1\"}"), {});
    EXPECT_EQ(settings.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(settings.status().message()),
                HasSubstr(absl::StrCat(key, ": \"1\"")));
  }
  for (const char* key : {"warmup_num_steps", "total_num_steps",
                          "warmup_min_lr", "warmup_max_lr"}) {
    ExpectRefused(
        absl::StrCat("\"optimizer\": {\"type\": \"AdamW\"}, \"scheduler\": "
                     "{\"type\": \"WarmupDecayLR\", \"params\": {\"",
                     key, "\": \"5\"}}"),
        absl::StatusCode::kInvalidArgument,
        {absl::StrCat("scheduler.params.", key, ": \"5\"")});
  }
  EXPECT_TRUE(ReadMembers(Zero("\"reduce_bucket_size\": \"500\"")).ok());
  EXPECT_TRUE(ReadMembers("\"gradient_clipping\": \"auto\"").ok());
}

TEST(AsDeepSpeed, WhatIsNotBuiltIsRefusedForATrueReason) {
  const auto code = absl::StatusCode::kUnimplemented;
  ExpectRefused(Zero("\"zero_quantized_weights\": true"), code,
                {"zero_optimization.zero_quantized_weights", "8 bits"});
  ExpectRefused("\"managed_gradient_accumulation\": false", code,
                {"managed_gradient_accumulation", "allowed: true"});
  EXPECT_TRUE(ReadMembers("\"managed_gradient_accumulation\": true").ok());
  ExpectRefused("\"compile\": {\"deepcompile\": true}", code,
                {"compile.deepcompile"});
  for (const char* key : {"offload_parameters", "free_activation"}) {
    // Only deepcompile reads it.
    ExpectNoted(absl::StrCat("\"compile\": {\"", key, "\": true}"),
                absl::StrCat("compile.", key));
  }
  for (const ZeroConfigKey& key : ZeroConfigKeys()) {
    EXPECT_THAT(key.why, Not(HasSubstr("which has it")));
  }
}

TEST(AsDeepSpeed, AFusedAdamIsAdam) {
  for (const char* key : {"fused", "foreach"}) {
    ExpectNoted(absl::StrCat("\"optimizer\": {\"type\": \"AdamW\", "
                             "\"params\": {\"torch_adam\": true, \"",
                             key, "\": true}}"),
                absl::StrCat("optimizer.params.", key));
  }
}

TEST(AsDeepSpeed, ActivationsWithoutAPathStayInMemory) {
  ZeroConfigCaller caller;
  caller.model.parameters = ZeroConfigCaller::Parameters::kOffloaded;
  caller.model.offloads_activations = true;
  ExpectNoted("\"activation_checkpointing\": {\"cpu_checkpointing\": true}",
              "activation_checkpointing.cpu_checkpointing", caller);
}

}  // namespace
}  // namespace terrace::zero_config_test
