// The optimizer, the scheduler and the precisions.
#include "zero_config/keys/key_table.h"

namespace terrace {
namespace {

using Type = KeyType;
using Use = KeyUse;

constexpr char kMaster[] =
    "16-bit parameters have an fp32 master and fp32 moments";

std::vector<SectionSpec> Optimizer() {
  KeySpec betas = OtherKey(Type::kNumbers, "betas", Use::kRead, "null");
  betas.most = 1;
  return {{"optimizer",
           UnknownKeys::kErrorIfNear,
           {
               OtherKey(Type::kName, "type", Use::kRead, "null"),
               SectionKey("params"),
               BooleanKey("legacy_fusion", Use::kIgnored, "false",
                          "the update is always fused"),
           }},
          {"optimizer.params",
           UnknownKeys::kError,
           {
               NumberKey("lr", 0, kUnbounded, Use::kRead, "0.001"),
               betas,
               NumberKey("eps", 0, kUnbounded, Use::kRead, "1e-08"),
               NumberKey("weight_decay", 0, kUnbounded, Use::kRead, "0"),
               BooleanKey("bias_correction", Use::kRead, "true"),
               BooleanKey("adam_w_mode", Use::kRead, "true"),
               BooleanKey("torch_adam", Use::kRead, "false"),
               BooleanKey("amsgrad", Use::kDefault, "false",
                          "there is no running maximum of the second moment"),
               BooleanKey("fp32_optimizer_states", Use::kRead, "true"),
               BooleanKey("fused", Use::kIgnored, "null",
                          "the update is always fused"),
               BooleanKey("foreach", Use::kIgnored, "null",
                          "the update is always fused"),
               BooleanKey("set_grad_none", Use::kIgnored, "true",
                          "gradients are the training program's"),
               NumberKey("max_grad_norm", 0, kUnbounded, Use::kLegacy, "null",
                         "the place for it is gradient_clipping"),
           }}};
}

// A count of steps; sums of two of them stay exact in a double.
KeySpec StepsKey(const char* name, double least, Use use,
                 const char* fallback) {
  KeySpec spec = NoText(IntegerKey(name, least, use, fallback));
  spec.most = 1e15;
  return spec;
}

KeySpec ScheduleNumber(const char* name, const char* fallback,
                       double most = kUnbounded) {
  return NoText(NumberKey(name, 0, most, Use::kRead, fallback));
}

std::vector<SectionSpec> Scheduler() {
  return {{"scheduler",
           UnknownKeys::kErrorIfNear,
           {
               OtherKey(Type::kName, "type", Use::kRead, "null"),
               SectionKey("params"),
           }},
          {"scheduler.params",
           UnknownKeys::kError,
           {
               ScheduleNumber("warmup_min_lr", "0"),
               ScheduleNumber("warmup_max_lr", "0.001"),
               StepsKey("warmup_num_steps", 1, Use::kRead, "1000"),
               OtherKey(Type::kText, "warmup_type", Use::kRead, "log"),
               StepsKey("total_num_steps", 1, Use::kRead, "null"),
               ScheduleNumber("warmup_min_ratio", "0"),
               ScheduleNumber("cos_min_ratio", "0.0001"),
               ScheduleNumber("lr_range_test_min_lr", "0.001"),
               StepsKey("lr_range_test_step_size", 1, Use::kRead, "2000"),
               ScheduleNumber("lr_range_test_step_rate", "1"),
               BooleanKey("lr_range_test_staircase", Use::kRead, "false"),
               ScheduleNumber("cycle_min_lr", "null"),
               ScheduleNumber("cycle_max_lr", "null"),
               ScheduleNumber("decay_lr_rate", "0"),
               StepsKey("cycle_first_step_size", 1, Use::kRead, "2000"),
               StepsKey("cycle_second_step_size", 1, Use::kRead, "null"),
               StepsKey("cycle_first_stair_count", 0, Use::kRead, "0"),
               StepsKey("cycle_second_stair_count", 0, Use::kRead, "null"),
               StepsKey("decay_step_size", 0, Use::kRead, "0"),
               BooleanKey("cycle_momentum", Use::kRead, "true"),
               ScheduleNumber("cycle_min_mom", "0.8", 1),
               ScheduleNumber("cycle_max_mom", "0.9", 1),
               ScheduleNumber("decay_mom_rate", "0"),
               IntegerKey("last_batch_iteration", -1, Use::kDefault, "-1",
                          "a resumed run brings its own step"),
           }}};
}

SectionSpec Bf16() {
  return {"bf16",
          UnknownKeys::kError,
          {
              BooleanKey("enabled", Use::kRead, "false"),
              BooleanKey("immediate_grad_update", Use::kIgnored, "false",
                         "gradients are read where the model has them"),
              BooleanKey("check_grad_overflow", Use::kRead, "true"),
              BooleanKey("bf16_master_weights_and_grads", Use::kRead, "false"),
              BooleanKey("bf16_optimizer_states", Use::kRead, "false"),
          }};
}

SectionSpec Fp16() {
  KeySpec power = IntegerKey("initial_scale_power", 0, Use::kRead, "16");
  power.most = 127;
  return {"fp16",
          UnknownKeys::kError,
          {
              BooleanKey("enabled", Use::kRead, "false"),
              BooleanKey("auto_cast", Use::kRead, "false"),
              NumberKey("loss_scale", 0, kUnbounded, Use::kRead, "0"),
              power,
              IntegerKey("loss_scale_window", 0, Use::kRead, "1000"),
              IntegerKey("hysteresis", 1, Use::kRead, "2"),
              BooleanKey("consecutive_hysteresis", Use::kRead, "false"),
              IntegerKey("min_loss_scale", 0, Use::kRead, "1"),
              BooleanKey("fp16_master_weights_and_grads", Use::kDefault,
                         "false", kMaster),
          }};
}

SectionSpec DataTypes() {
  const std::vector<std::string> types = {"fp32", "fp16", "bf16"};
  const auto key = [&](const char* name) {
    return WordKey(Type::kDataType, name, types, Use::kRead, "null");
  };
  return {
      "data_types",
      UnknownKeys::kErrorIfNear,
      {key("grad_accum_dtype"), key("param_dtype"), key("buffer_dtype"),
       OtherKey(Type::kOpaque, "keep_in_fp32_modules", Use::kIgnored, "null",
                "buffers keep the model's type, but for a buffer_dtype")}};
}

}  // namespace

std::vector<SectionSpec> TrainingSections() {
  std::vector<SectionSpec> all = Optimizer();
  for (SectionSpec& section : Scheduler()) all.push_back(std::move(section));
  all.push_back(Bf16());
  all.push_back(Fp16());
  all.push_back(DataTypes());
  return all;
}

}  // namespace terrace
