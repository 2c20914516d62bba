// The keys of the top level.
#include "zero_config/keys/key_table.h"

namespace terrace {
namespace {

using Type = KeyType;
using Use = KeyUse;

constexpr char kReports[] = "reports are the training program's";
constexpr char kMathematics[] = "it changes the mathematics";
constexpr char kEngine[] = "it belongs to another engine";
constexpr char kOneAccumulation[] =
    "as many micro-batches as the text says make a step, and the training "
    "program takes it";

KeySpec Off(const char* name, const char* why) {
  return OtherKey(Type::kOpaque, name, Use::kOff, "null", why);
}
KeySpec Empty(const char* name, const char* why) {
  return OtherKey(Type::kOpaque, name, Use::kEmpty, "null", why);
}
KeySpec Ignored(const char* name, const char* why) {
  return OtherKey(Type::kOpaque, name, Use::kIgnored, "null", why);
}

// What Terrace follows.
std::vector<KeySpec> Followed() {
  return {
      SectionKey("zero_optimization"),
      SectionKey("optimizer"),
      SectionKey("scheduler"),
      WithDeprecated(SectionKey("bf16"), "bfloat16"),
      SectionKey("fp16"),
      SectionKey("data_types"),
      SectionKey("aio"),
      SectionKey("activation_checkpointing"),
      SectionKey("checkpoint"),
      SectionKey("compile"),
      SectionKey("nebula"),
      SectionKey("terrace"),
      NoText(IntegerKey("train_batch_size", 1, Use::kRead, "null")),
      NoText(
          IntegerKey("train_micro_batch_size_per_gpu", 1, Use::kRead, "null")),
      NoText(IntegerKey("gradient_accumulation_steps", 1, Use::kRead, "null")),
      NoText(NumberKey("gradient_clipping", 0, kUnbounded, Use::kRead, "1")),
      WordKey(Type::kAnyCase, "gradient_allreduce_op", {"mean", "sum"},
              Use::kRead, "mean"),
      BooleanKey("managed_gradient_accumulation", Use::kDefault, "true",
                 kOneAccumulation),
      WordKey(Type::kAnyCase, "communication_data_type",
              {"fp32", "fp16", "bf16"}, Use::kRead, "null"),
      BooleanKey("prescale_gradients", Use::kRead, "false"),
      NumberKey("gradient_predivide_factor", 0, kUnbounded, Use::kRead, "1"),
      IntegerKey("allgather_size", 0, Use::kRead, "500000000"),
  };
}

// What has no effect on any result.
std::vector<KeySpec> WithoutEffect() {
  return {
      NumberKey("steps_per_print", 0, kUnbounded, Use::kIgnored, "null",
                kReports),
      BooleanKey("wall_clock_breakdown", Use::kIgnored, "false", kReports),
      BooleanKey("memory_breakdown", Use::kIgnored, "false", kReports),
      BooleanKey("dump_state", Use::kIgnored, "false", kReports),
      Ignored("flops_profiler", kReports),
      Ignored("tensorboard", kReports),
      Ignored("wandb", kReports),
      Ignored("comet", kReports),
      Ignored("csv_monitor", kReports),
      Ignored("comms_logger", kReports),
      Ignored("timers", kReports),
      Ignored("log_level", kReports),
      Ignored("disable_python_gc", "Terrace never starts Python's collector"),
      Ignored("autotuning", "only DeepSpeed's launcher tunes"),
      Ignored("pipeline", "the model is not cut in stages"),
      Ignored("data_efficiency",
              "the training program makes its own data loader"),
      Ignored("datastates", "a checkpoint is written by Terrace's own engine"),
      IntegerKey("vocabulary_size", 1, Use::kIgnored, "null",
                 "the model knows its own"),
      BooleanKey("zero_force_ds_cpu_optimizer", Use::kIgnored, "true",
                 "there is one optimizer"),
      BooleanKey("zero_allow_untested_optimizer", Use::kIgnored, "false",
                 "there is one optimizer"),
      BooleanKey("disable_allgather", Use::kIgnored, "false",
                 "how ranks gather; the values are the same"),
      WordKey(Type::kAnyCase, "seq_parallel_communication_data_type",
              {"fp32", "fp16", "bf16"}, Use::kIgnored, "fp32",
              "sequences are not split over ranks"),
  };
}

// What is accepted while it is off.
std::vector<KeySpec> WhileOff() {
  return {
      OtherKey(Type::kOpaque, "amp", Use::kLegacy, "null",
               "DeepSpeed refuses it too, since it has no Apex any more; fp16 "
               "and bf16 are in its place"),
      Off("torch_autocast", "the training program casts, if it wants to"),
      Off("elasticity", "the batch is what the text says"),
      Off("hybrid_engine", kEngine),
      Off("curriculum_learning", kMathematics),
      Off("progressive_layer_drop", kMathematics),
      Off("eigenvalue", kMathematics),
      Off("quantize_training", kMathematics),
      Off("expert_parallel", kEngine),
      Empty("compression_training", kMathematics),
      Empty("sparse_attention", kMathematics),
      Empty("tensor_parallel", kEngine),
      Empty("weight_quantization", kMathematics),
      IntegerKey("sequence_parallel_size", 1, Use::kDefault, "1", kEngine),
      BooleanKey("sparse_gradients", Use::kDefault, "false",
                 "gradients are dense"),
      BooleanKey("graph_harvesting", Use::kDefault, "false", kEngine),
      BooleanKey("dataloader_drop_last", Use::kDefault, "false",
                 "the training program makes its own data loader"),
      BooleanKey("use_data_before_expert_parallelism", Use::kDefault, "false",
                 kEngine),
  };
}

}  // namespace

std::vector<SectionSpec> TopSections() {
  SectionSpec top;
  top.unknown = UnknownKeys::kErrorIfNear;
  for (const auto& part : {Followed(), WithoutEffect(), WhileOff()}) {
    top.keys.insert(top.keys.end(), part.begin(), part.end());
  }
  return {top};
}

}  // namespace terrace
