// Configurations as people have them.
#include <gtest/gtest.h>

#include "tests/zero_config/key_rows.h"

namespace terrace::zero_config_test {
namespace {

// As a trainer's examples have it, all that it fills in left to it.
constexpr char kTrainer[] = R"({
    "fp16": {
        "enabled": "auto",
        "loss_scale": 0,
        "loss_scale_window": 1000,
        "initial_scale_power": 16,
        "hysteresis": 2,
        "min_loss_scale": 1
    },
    "bf16": {"enabled": "auto"},
    "optimizer": {
        "type": "AdamW",
        "params": {
            "lr": "auto",
            "betas": "auto",
            "eps": "auto",
            "weight_decay": "auto"
        }
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": "auto",
            "warmup_max_lr": "auto",
            "warmup_num_steps": "auto",
            "total_num_steps": "auto"
        }
    },
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {
            "device": "nvme",
            "nvme_path": "/local_nvme",
            "pin_memory": true,
            "buffer_count": 4,
            "fast_init": false
        },
        "offload_param": {"device": "none"},
        "overlap_comm": true,
        "contiguous_gradients": true,
        "sub_group_size": 1e9,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": true
    },
    "aio": {
        "block_size": 262144,
        "queue_depth": 32,
        "intra_op_parallelism": 1,
        "single_submit": false,
        "overlap_events": true
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": false
})";

TEST(Sample, ATrainersFileReadsAsItsArguments) {
  ZeroConfigCaller caller;
  caller.parameter_dtype = DType::kBFloat16;
  caller.learning_rate = 5e-5;
  caller.beta1 = 0.9;
  caller.beta2 = 0.95;
  caller.epsilon = 1e-8;
  caller.weight_decay = 0.1;
  caller.warmup_num_steps = 100;
  caller.total_num_steps = 1000;
  caller.micro_batch = 4;
  caller.accumulation_steps = 8;
  caller.gradient_clipping = 0.5;
  const auto settings = Read(kTrainer, caller);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->stage, 3);
  EXPECT_EQ(settings->parameter_dtype, DType::kBFloat16);
  EXPECT_FALSE(settings->loss_scale.has_value());
  EXPECT_TRUE(settings->skip_nonfinite);
  ASSERT_TRUE(settings->adam.has_value());
  EXPECT_EQ(settings->adam->learning_rate, 5e-5);
  EXPECT_EQ(settings->adam->beta2, 0.95);
  EXPECT_EQ(settings->adam->weight_decay, 0.1);
  EXPECT_EQ(settings->schedule.most, 5e-5);
  EXPECT_EQ(settings->schedule.total_steps, 1000);
  EXPECT_EQ(settings->max_gradient_norm, 0.5);
  EXPECT_EQ(settings->train_batch, 32);
  EXPECT_EQ(settings->offload_device, OffloadDevice::kNvme);
  EXPECT_EQ(settings->nvme_paths, std::vector<std::string>{"/local_nvme"});
  EXPECT_EQ(settings->aio.block_size, 262144);
  EXPECT_EQ(settings->aio.queue_depth, 32);
  EXPECT_FALSE(settings->update.pipeline);

  // Each key that is sized here is said so, once, in the order of the text.
  std::vector<std::string> sized;
  for (const ZeroConfigNote& note : settings->notes) {
    if (note.kind == ZeroConfigNote::Kind::kSized) sized.push_back(note.path);
  }
  const std::string zero = "zero_optimization.";
  EXPECT_EQ(sized,
            (std::vector<std::string>{
                zero + "offload_optimizer.buffer_count",
                zero + "sub_group_size", zero + "stage3_max_live_parameters",
                zero + "stage3_max_reuse_distance", "aio.block_size",
                "aio.queue_depth", "aio.intra_op_parallelism"}));
}

// An older one, written by hand.
constexpr char kOld[] = R"({
  "train_batch_size": 64, // of all ranks
  "gradient_accumulation_steps": 4,
  "optimizer": {
    "type": "Adam",
    "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8,
               "weight_decay": 3e-7, "adam_w_mode": false}
  },
  "scheduler": {
    "type": "WarmupLR",
    "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001,
               "warmup_num_steps": 1000}
  },
  "gradient_clipping": 1.0,
  "prescale_gradients": false,
  "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 15},
  "zero_optimization": {
    "stage": 1,
    "cpu_offload": true,
    "cpu_offload_use_pin_memory": true,
    "allgather_partitions": true,
    "allgather_bucket_size": 50000000,
    "reduce_scatter": true,
    "reduce_bucket_size": 50000000
  }
})";

TEST(Sample, AnOlderFileReadsAsIsWritten) {
  ZeroConfigCaller caller;
  caller.world_size = 2;
  const auto settings = Read(kOld, caller);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->micro_batch, 8);
  EXPECT_EQ(settings->offload_device, OffloadDevice::kCpu);
  EXPECT_FALSE(settings->adam->decoupled_decay);
  EXPECT_EQ(settings->adam->weight_decay, 3e-7);
  ASSERT_TRUE(settings->loss_scale.has_value());
  EXPECT_EQ(settings->loss_scale->initial, 32768);
  EXPECT_EQ(settings->schedule.kind, LearningRateSchedule::Kind::kWarmup);
  EXPECT_EQ(settings->schedule.warmup_steps, 1000);
}

TEST(Sample, GradientsStayWholeWhereRanksShareTheState) {
  const auto text = [](int stage) {
    return absl::StrCat(
        R"({"train_batch_size": 8, "zero_optimization": {"stage": )", stage,
        "}}");
  };
  ZeroConfigCaller caller;
  caller.world_size = 2;
  const absl::Status alone = Read(text(2), caller).status();
  EXPECT_TRUE(absl::IsUnimplemented(alone)) << alone;
  caller.shares_state = true;
  for (const int stage : {0, 1, 2}) {
    const auto settings = Read(text(stage), caller);
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(settings->stage, stage);
    bool said = false;
    for (const ZeroConfigNote& note : settings->notes) {
      said = said || note.path == "zero_optimization.stage";
    }
    EXPECT_EQ(said, stage == 2);
  }
  const absl::Status third = Read(text(3), caller).status();
  EXPECT_TRUE(absl::IsUnimplemented(third)) << third;
}

TEST(Sample, WhatTheTextGivesIsListed) {
  const auto settings = Read(
      "{\"train_batch_size\": 4, \"gradient_clipping\": \"auto\", "
      "\"gradient_accumulation_steps\": null, \"fp16\": {\"hysteresis\": 2}}");
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->given,
            (std::vector<std::string>{"fp16", "fp16.hysteresis",
                                      "train_batch_size"}));
}

}  // namespace
}  // namespace terrace::zero_config_test
