// zero_optimization and all below it.
#include "zero_config/keys/key_table.h"

namespace terrace {
namespace {

using Type = KeyType;
using Use = KeyUse;

constexpr char kNoParameters[] =
    "parameters stay where the model has them, or are offloaded within a "
    "budget";
constexpr char kTransfers[] =
    "Terrace sizes its transfers from what the paths can do";
constexpr char kRemoved[] = "DeepSpeed has it no more";
constexpr char kFrozen[] = "frozen weights would be rounded to 8 bits";
constexpr char kWeights[] =
    "the weights that ranks gather would be rounded to 8 bits";

KeySpec Stage() {
  KeySpec stage = IntegerKey("stage", 0, Use::kRead, "0");
  stage.most = 3;
  return stage;
}

// What bounds transfers and buckets.
std::vector<KeySpec> Sizes() {
  return {
      Stage(),
      IntegerKey("sub_group_size", 0, Use::kSized, "1000000000",
                 "an upper bound of a chunk of state; parameters are split"),
      IntegerKey("reduce_bucket_size", 0, Use::kSized, "500000000",
                 "gradients are taken chunk by chunk"),
      IntegerKey("allgather_bucket_size", 0, Use::kSized, "500000000",
                 "no buckets are gathered"),
      BooleanKey("overlap_comm", Use::kIgnored, "null",
                 "transfers always overlap the computation"),
      BooleanKey("contiguous_gradients", Use::kIgnored, "true",
                 "gradients are read where they are"),
      BooleanKey("reduce_scatter", Use::kIgnored, "true",
                 "how ranks reduce; the sums are the same"),
      BooleanKey("use_multi_rank_bucket_allreduce", Use::kIgnored, "true",
                 "how ranks reduce; the sums are the same"),
      BooleanKey("allgather_partitions", Use::kIgnored, "true",
                 "how ranks gather; the values are the same"),
      BooleanKey("memory_efficient_linear", Use::kIgnored, "true",
                 "the model's layers are left alone"),
      BooleanKey("override_module_apply", Use::kIgnored, "true",
                 "the model's layers are left alone"),
      BooleanKey("round_robin_gradients", Use::kIgnored, "false",
                 "gradients are taken chunk by chunk"),
      BooleanKey("pipeline_loading_checkpoint", Use::kIgnored, "false",
                 "a checkpoint is always streamed"),
  };
}

std::vector<KeySpec> StageThree() {
  return {
      WithAlias(
          IntegerKey("stage3_prefetch_bucket_size", 0, Use::kSized, "50000000",
                     "the trace of the last step knows the next use"),
          "prefetch_bucket_size"),
      WithAlias(
          IntegerKey("stage3_max_reuse_distance", 0, Use::kSized, "1000000000",
                     "the trace of the last step knows the next use"),
          "max_reuse_distance"),
      WithAlias(IntegerKey("stage3_param_persistence_threshold", 0, Use::kSized,
                           "100000", kNoParameters),
                "param_persistence_threshold"),
      WithAlias(IntegerKey("stage3_model_persistence_threshold", 0, Use::kSized,
                           "9223372036854775807", kNoParameters),
                "model_persistence_threshold"),
      WithAlias(IntegerKey("stage3_max_live_parameters", 0, Use::kSized,
                           "1000000000", kNoParameters),
                "max_live_parameters"),
      WithAlias(IntegerKey("stage3_module_granularity_threshold", 0,
                           Use::kSized, "0", kNoParameters),
                "module_granularity_threshold"),
      WithAlias(BooleanKey("stage3_use_all_reduce_for_fetch_params",
                           Use::kIgnored, "false", kNoParameters),
                "use_all_reduce_for_fetch_params"),
      WithAlias(BooleanKey("stage3_allgather_sequential", Use::kIgnored,
                           "false", kNoParameters),
                "allgather_sequential"),
      SectionKey("leaf_module"),
      WithDeprecated(
          WithAlias(BooleanKey("stage3_gather_16bit_weights_on_model_save",
                               Use::kIgnored, "false",
                               "the weights are whole on every rank"),
                    "gather_16bit_weights_on_model_save"),
          "stage3_gather_fp16_weights_on_model_save"),
  };
}

// What is built at its default only, and the sections.
std::vector<KeySpec> Others() {
  return {
      BooleanKey("load_from_fp32_weights", Use::kDefault, "true",
                 "masters are always taken from the fp32 values"),
      BooleanKey("ignore_unused_parameters", Use::kDefault, "true",
                 "a parameter without a gradient keeps its value and "
                 "state, and is no error"),
      BooleanKey("enable_sanity_checks", Use::kDefault, "false",
                 "no checks of ranks against each other"),
      BooleanKey("log_trace_cache_warnings", Use::kIgnored, "false",
                 "deviations from the trace are always counted"),
      BooleanKey("save_muon_momentum_buffer_in_memory", Use::kIgnored, "false",
                 "there is no Muon"),
      BooleanKey("elastic_checkpoint", Use::kIgnored, "false",
                 "checkpoints load at any world size without it"),
      BooleanKey("legacy_stage1", Use::kLegacy, "false",
                 "DeepSpeed itself raises for it"),
      BooleanKey("compute_grad_norm", Use::kRead, "true"),
      BooleanKey("parameter_alignment", Use::kIgnored, "false",
                 "parameters stay where the model has them"),
      IntegerKey("zero_hpz_partition_size", 0, Use::kRead, "1"),
      BooleanKey("zero_quantized_weights", Use::kDefault, "false", kWeights),
      BooleanKey("zero_quantized_nontrainable_weights", Use::kDefault, "false",
                 kFrozen),
      BooleanKey("zero_quantized_gradients", Use::kRead, "false"),
      OtherKey(Type::kOpaque, "zeropp_loco_param", Use::kDefault, "null",
               kRemoved),
      IntegerKey("mics_shard_size", -1, Use::kDefault, "-1", kRemoved),
      BooleanKey("mics_hierarchical_params_gather", Use::kDefault, "false",
                 kRemoved),
      BooleanKey("cpu_offload", Use::kRead, "false"),
      BooleanKey("cpu_offload_param", Use::kRead, "false"),
      BooleanKey("cpu_offload_use_pin_memory", Use::kIgnored, "false",
                 "deprecated, and without effect in DeepSpeed too"),
      SectionKey("offload_optimizer"),
      SectionKey("offload_param"),
      SectionKey("zenflow"),
  };
}

SectionSpec Zero() {
  SectionSpec zero;
  zero.path = "zero_optimization";
  for (const auto& part : {Sizes(), StageThree(), Others()}) {
    zero.keys.insert(zero.keys.end(), part.begin(), part.end());
  }
  return zero;
}

SectionSpec LeafModule() {
  const std::string why = kNoParameters;
  return {
      "zero_optimization.leaf_module",
      UnknownKeys::kError,
      {
          OtherKey(Type::kTexts, "classes", Use::kIgnored, "null", why),
          OtherKey(Type::kTexts, "names", Use::kIgnored, "null", why),
          OtherKey(Type::kTexts, "name_suffixes", Use::kIgnored, "null", why),
      }};
}

KeySpec Device() {
  return WordKey(Type::kWord, "device", {"none", "cpu", "nvme"}, Use::kRead,
                 "none");
}

SectionSpec OffloadOptimizer() {
  return {"zero_optimization.offload_optimizer",
          UnknownKeys::kError,
          {
              Device(),
              OtherKey(Type::kPaths, "nvme_path", Use::kRead, "null"),
              IntegerKey("buffer_count", 0, Use::kSized, "4", kTransfers),
              BooleanKey("pin_memory", Use::kIgnored, "true",
                         "the memory for transfers is Terrace's own, within "
                         "the budget"),
              BooleanKey("pipeline_read", Use::kIgnored, "false",
                         "reads always run ahead of the update"),
              BooleanKey("pipeline_write", Use::kIgnored, "false",
                         "writes always run behind the update"),
              BooleanKey("fast_init", Use::kIgnored, "false",
                         "state that is all zeros is never read"),
              NumberKey("ratio", 0, 1, Use::kRead, "1"),
              BooleanKey("super_offload", Use::kIgnored, "false",
                         "the update always runs in this process, on its own "
                         "threads"),
              NumberKey("cpuadam_cores_perc", 0, 1, Use::kRead, "1"),
          }};
}

SectionSpec OffloadParam() {
  return {
      "zero_optimization.offload_param",
      UnknownKeys::kError,
      {
          Device(),
          OtherKey(Type::kPaths, "nvme_path", Use::kRead, "null"),
          IntegerKey("buffer_count", 0, Use::kSized, "5", kTransfers),
          IntegerKey("buffer_size", 0, Use::kSized, "100000000", kTransfers),
          IntegerKey("max_in_cpu", 0, Use::kSized, "1000000000", kNoParameters),
          BooleanKey("pin_memory", Use::kIgnored, "true", kNoParameters),
      }};
}

SectionSpec Zenflow() {
  const auto interval = [](const char* name) {
    KeySpec spec = IntegerKey(name, 1, Use::kRead, "auto");
    spec.type = Type::kInterval;
    return spec;
  };
  return {"zero_optimization.zenflow",
          UnknownKeys::kError,
          {
              NumberKey("topk_ratio", 0, 1, Use::kRead, "0.1"),
              NumberKey("auto_ratio", 0, 1, Use::kRead, "0.99"),
              NumberKey("pt_reserved_cores_perc", 0, 1, Use::kRead, "0.5"),
              WordKey(Type::kWord, "select_strategy", {"auto", "step", "epoch"},
                      Use::kRead, "auto"),
              interval("select_interval"),
              interval("update_interval"),
              BooleanKey("overlap_step", Use::kRead, "false"),
              BooleanKey("offload", Use::kRead, "false"),
              IntegerKey("full_warm_up_rounds", 0, Use::kRead, "0"),
              OtherKey(Type::kOpaque, "steps_per_epoch", Use::kLegacy, "null",
                       "it is set by DeepSpeed itself"),
          }};
}

}  // namespace

std::vector<SectionSpec> ZeroSections() {
  return {Zero(), LeafModule(), OffloadOptimizer(), OffloadParam(), Zenflow()};
}

}  // namespace terrace
