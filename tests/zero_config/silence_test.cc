// Where DeepSpeed is silent or late, and several keys together.
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "tests/zero_config/key_rows.h"

namespace terrace::zero_config_test {
namespace {

constexpr absl::StatusCode kOk = absl::StatusCode::kOk;
constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kNotBuilt = absl::StatusCode::kUnimplemented;

struct Case {
  std::string members;
  int64_t ranks;
  absl::StatusCode code;
  std::vector<std::string> parts = {};  // of the message
};

void Check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.members);
    ZeroConfigCaller caller;
    caller.world_size = c.ranks;
    const auto settings = ReadMembers(c.members, caller);
    EXPECT_EQ(settings.status().code(), c.code) << settings.status();
    for (const std::string& part : c.parts) {
      EXPECT_TRUE(absl::StrContains(settings.status().message(), part))
          << settings.status();
    }
  }
}

std::string Zero(const std::string& members) {
  return "\"zero_optimization\": {" + members + "}";
}

TEST(Silence, NvmeWithoutAPathNamesTheKey) {
  Check({{Zero("\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\"}"),
          1,
          kInvalid,
          {"offload_optimizer.device", "offload_optimizer.nvme_path"}}});
}

TEST(Silence, NvmeAtEveryStageIsReallyNvme) {
  for (const char* stage : {"0", "1", "2", "3"}) {
    const auto settings =
        ReadMembers(Zero(std::string("\"stage\": ") + stage +
                         ", \"offload_optimizer\": {\"device\": \"nvme\", "
                         "\"nvme_path\": [\"/mnt/a\", \"/mnt/b\"]}"));
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(settings->offload_device, OffloadDevice::kNvme);
    EXPECT_EQ(settings->nvme_paths,
              (std::vector<std::string>{"/mnt/a", "/mnt/b"}));
  }
}

TEST(Silence, OffloadedParametersAreIgnoredBelowStageThree) {
  for (const char* device :
       {"\"cpu\"", "\"nvme\"", "\"nvme\", \"nvme_path\": \"/a\""}) {
    const std::string param =
        std::string(", \"offload_param\": {\"device\": ") + device + "}";
    Check({{Zero("\"stage\": 2" + param), 1, kOk},
           {Zero("\"stage\": 0" + param), 4, kOk}});
  }
  Check({{Zero("\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}"),
          1,
          kNotBuilt,
          {"offload_param.device"}}});
}

TEST(Silence, IoSettingsOfZeroAreRefused) {
  for (const char* key :
       {"block_size", "queue_depth", "intra_op_parallelism"}) {
    for (const char* value : {"0", "-1", "1.5", "true"}) {
      const std::string path = std::string("aio.") + key;
      Check({{std::string("\"aio\": {\"") + key + "\": " + value + "}",
              1,
              kInvalid,
              {path, value, "an integer of at least 1"}}});
    }
  }
}

TEST(Silence, AmsgradIsNotBuilt) {
  Check(
      {{"\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"amsgrad\": "
        "true}}",
        1,
        kNotBuilt,
        {"optimizer.params.amsgrad"}}});
}

TEST(Silence, NoDeviceBesideOtherKeysIsNoted) {
  const auto settings = ReadMembers(
      Zero("\"offload_optimizer\": {\"device\": \"none\", \"buffer_count\": "
           "5}"));
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->offload_device, OffloadDevice::kNone);
  ASSERT_EQ(settings->notes.size(), 2u);
  EXPECT_EQ(settings->notes[1].kind, ZeroConfigNote::Kind::kMeaning);
  EXPECT_EQ(settings->notes[1].path,
            "zero_optimization.offload_optimizer.device");
}

TEST(Silence, APartOfTheStateOnTheHostIsAllOfItAtStageThree) {
  const std::string ratio =
      ", \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.3}";
  Check({{Zero("\"stage\": 2" + ratio), 1, kInvalid, {"ZeRO Stage 3."}}});
  const auto settings = ReadMembers(Zero("\"stage\": 3" + ratio));
  ASSERT_TRUE(settings.ok()) << settings.status();
  ASSERT_EQ(settings->notes.size(), 2u);  // one is of the stage
  EXPECT_EQ(settings->notes[0].path,
            "zero_optimization.offload_optimizer.ratio");
}

TEST(Silence, WhatRanksWouldSplitIsBuiltForStageOneOnly) {
  Check({{Zero("\"stage\": 0"), 4, kOk},
         {Zero("\"stage\": 1"), 4, kOk},
         {Zero("\"stage\": 2"), 4, kNotBuilt, {"gradients", "4 ranks"}},
         {Zero("\"stage\": 3"), 4, kNotBuilt, {"parameters", "4 ranks"}},
         {Zero("\"stage\": 3"), 1, kOk}});
}

TEST(Silence, HowRanksReduceIsFollowedOrRefused) {
  const std::string bf16 = "\"bf16\": {\"enabled\": true}, ";
  Check({
      {"\"gradient_allreduce_op\": \"mean\"", 2, kOk},
      {"\"gradient_allreduce_op\": \"sum\"", 2, kNotBuilt, {"averaged"}},
      {"\"gradient_allreduce_op\": \"sum\"", 1, kOk},
      {"\"gradient_allreduce_op\": \"sum\", " + Zero("\"stage\": 3"),
       1,
       kInvalid,
       {"stage 3"}},
      {"\"communication_data_type\": \"fp32\"", 2, kOk},
      {"\"communication_data_type\": \"fp16\"", 2, kNotBuilt, {"fp32"}},
      {bf16 + "\"communication_data_type\": \"bf16\"", 2, kOk},
      {bf16 + "\"communication_data_type\": \"fp32\"", 2, kNotBuilt},
      {"\"prescale_gradients\": true", 2, kNotBuilt},
      {"\"prescale_gradients\": false", 2, kOk},
      {"\"gradient_predivide_factor\": 2", 2, kNotBuilt},
      {"\"gradient_predivide_factor\": 1.0", 2, kOk},
  });
}

TEST(Silence, ZenflowIsCheckedAndThenNotBuilt) {
  const auto zenflow = [](const std::string& members) {
    return Zero(
        "\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"}, "
        "\"zenflow\": {" +
        members + "}");
  };
  const std::string step = "\"select_strategy\": \"step\", ";
  const std::string overlap = "\"overlap_comm\": true, ";
  Check({
      {zenflow(""), 1, kNotBuilt, {"zero_optimization.zenflow"}},
      {zenflow("\"select_interval\": 4"), 1, kInvalid, {"no interval"}},
      {zenflow(step + "\"select_interval\": 2, \"update_interval\": 4"),
       1,
       kInvalid,
       {"at least update_interval"}},
      {zenflow(step + "\"select_interval\": 4, \"update_interval\": 4"), 1,
       kNotBuilt},
      {zenflow("\"offload\": true"), 1, kInvalid, {"needs", "overlap_comm"}},
      {zenflow("\"topk_ratio\": 0.1, \"auto_ratio\": 1, "
               "\"pt_reserved_cores_perc\": 0.5, \"overlap_step\": true, "
               "\"full_warm_up_rounds\": 2, \"update_interval\": \"auto\""),
       1, kNotBuilt},
      {zenflow("") + ", \"gradient_allreduce_op\": \"sum\"",
       1,
       kInvalid,
       {"gradient_allreduce_op"}},
      {Zero("\"zenflow\": {}"), 1, kInvalid, {"needs"}},
  });
}

TEST(Silence, Bf16StatesAreCheckedAndThenNotBuilt) {
  const std::string both =
      ", \"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": "
      "true, \"bf16_optimizer_states\": true}";
  Check({{Zero("\"stage\": 0") + both, 1, kInvalid, {"stage 1, 2 or 3"}},
         {Zero("\"stage\": 1") + both, 1, kNotBuilt, {"bf16_master"}}});
}

TEST(Silence, EveryUnbuiltDoorIsShutNotNoted) {
  // What the issue names.
  Check({{"\"compile\": {\"deepcompile\": true}", 1, kNotBuilt},
         {"\"amp\": {\"enabled\": true}", 1, kInvalid, {"amp"}}});
}

TEST(Silence, TheFirstWrongKeyOfTheTextIsNamed) {
  Check({{"\"gradient_clipping\": -1, \"aio\": {\"queue_depth\": 0}",
          1,
          kInvalid,
          {"gradient_clipping"}}});
}

TEST(Silence, ALocalFolderForEachNodeIsBuiltForOneRank) {
  const std::string local =
      "\"checkpoint\": {\"use_node_local_storage\": true}";
  Check({{local, 1, kOk},
         {local, 2, kNotBuilt, {"checkpoint.use_node_local_storage"}}});
}

}  // namespace
}  // namespace terrace::zero_config_test
