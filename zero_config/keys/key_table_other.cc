// I/O, checkpoints and engines beside ZeRO.
#include "zero_config/keys/key_table.h"

namespace terrace {
namespace {

using Type = KeyType;
using Use = KeyUse;

constexpr char kEngineSizes[] =
    "the I/O engine sizes its pieces and its queue itself";
constexpr char kOff[] = "read by deepcompile alone, which is off";
constexpr char kRecompute[] =
    "what is recomputed is the training program's choice";
constexpr char kWriter[] = "a checkpoint is written by Terrace's own engine";
constexpr char kNebula[] = "nebula is off";

SectionSpec Aio() {
  return {"aio",
          UnknownKeys::kErrorIfNear,
          {
              IntegerKey("block_size", 1, Use::kSized, "1048576", kEngineSizes),
              IntegerKey("queue_depth", 1, Use::kSized, "8", kEngineSizes),
              IntegerKey("intra_op_parallelism", 1, Use::kSized, "1",
                         "one thread keeps every path busy"),
              IntegerKey("thread_count", 1, Use::kRead, "1"),
              IntegerKey("num_threads", 1, Use::kRead, "1"),
              BooleanKey("single_submit", Use::kIgnored, "false",
                         "large ones go one by one, small ones together"),
              BooleanKey("overlap_events", Use::kIgnored, "true",
                         "the queue is always refilled early"),
              BooleanKey("use_gds", Use::kDefault, "false",
                         "there is no GPU Direct Storage"),
          }};
}

SectionSpec ActivationCheckpointing() {
  const auto boolean = [](const char* name) {
    return BooleanKey(name, Use::kIgnored, "false", kRecompute);
  };
  return {"activation_checkpointing",
          UnknownKeys::kErrorIfNear,
          {
              boolean("partition_activations"),
              BooleanKey("cpu_checkpointing", Use::kRead, "false"),
              boolean("contiguous_memory_optimization"),
              boolean("synchronize_checkpoint_boundary"),
              boolean("profile"),
              OtherKey(Type::kOpaque, "number_checkpoints", Use::kIgnored,
                       "null", kRecompute),
          }};
}

std::vector<SectionSpec> Checkpoint() {
  return {
      {"checkpoint",
       UnknownKeys::kErrorIfNear,
       {
           WordKey(Type::kAnyCase, "tag_validation", {"WARN", "IGNORE", "FAIL"},
                   Use::kRead, "WARN"),
           BooleanKey("checkpoint_serialization", Use::kIgnored, "true",
                      kWriter),
           BooleanKey("load_universal", Use::kIgnored, "false",
                      "Terrace's own checkpoints load at any world size, "
                      "DeepSpeed's are not read"),
           BooleanKey("use_node_local_storage", Use::kRead, "false"),
           SectionKey("parallel_write"),
           SectionKey("writer"),
       }},
      {"checkpoint.parallel_write",
       UnknownKeys::kErrorIfNear,
       {BooleanKey("pipeline_stage", Use::kIgnored, "false", kWriter)}},
      {"checkpoint.writer",
       UnknownKeys::kErrorIfNear,
       {
           WordKey(Type::kAnyCase, "type", {"FAST", "MOCK", "PYTHON"},
                   Use::kIgnored, "FAST", kWriter),
           BooleanKey("decoupled", Use::kIgnored, "false", kWriter),
           IntegerKey("io_buffer_size", 1, Use::kIgnored, "67108864", kWriter),
           BooleanKey("io_buffer_double", Use::kIgnored, "true", kWriter),
           BooleanKey("show_statistics", Use::kIgnored, "false", kWriter),
           WordKey(Type::kAnyCase, "data_parallel",
                   {"REPLICA", "SOCKET", "MACHINE"}, Use::kIgnored, "null",
                   kWriter),
           IntegerKey("io_multiplier", 1, Use::kIgnored, "1", kWriter),
       }}};
}

SectionSpec Compile() {
  const auto idle = [](const char* name, const char* fallback) {
    return BooleanKey(name, Use::kIgnored, fallback, kOff);
  };
  return {"compile",
          UnknownKeys::kError,
          {
              BooleanKey("deepcompile", Use::kDefault, "false",
                         "no pass rewrites the model's graph"),
              idle("autoep_non_moe", "false"),
              idle("offload_parameters", "false"),
              idle("offload_opt_states", "false"),
              idle("offload_activation", "false"),
              idle("free_activation", "false"),
              idle("symmetric_memory", "false"),
              idle("debug_log", "false"),
              idle("keep_all_input_tensors", "false"),
              idle("sync_before_reduce", "false"),
              idle("sync_after_reduce", "false"),
              idle("sync_before_allgather", "false"),
              idle("sync_after_allgather", "false"),
              idle("offload_activation_pin_memory", "true"),
              idle("double_buffer", "true"),
              idle("keep_int_input_tensors", "true"),
              IntegerKey("free_activation_threshold", 0, Use::kIgnored,
                         "10485760", kOff),
              OtherKey(Type::kTexts, "passes", Use::kIgnored, "null", kOff),
          }};
}

SectionSpec Nebula() {
  const auto idle = [](const char* name) {
    return OtherKey(Type::kOpaque, name, Use::kIgnored, "null", kNebula);
  };
  return {"nebula",
          UnknownKeys::kErrorIfNear,
          {
              BooleanKey("enabled", Use::kDefault, "false",
                         "checkpoints are Terrace's own"),
              idle("enable_nebula_load"),
              idle("nebula_load_path"),
              idle("persistent_storage_path"),
              idle("persistent_time_interval"),
              idle("num_of_version_in_retention"),
          }};
}

// What DeepSpeed's JSON has no key for.
SectionSpec Terrace() {
  return {"terrace",
          UnknownKeys::kError,
          {OtherKey(Type::kName, "daemon", Use::kRead, "null")}};
}

}  // namespace

std::vector<SectionSpec> OtherSections() {
  std::vector<SectionSpec> all = {Aio(), ActivationCheckpointing()};
  for (SectionSpec& section : Checkpoint()) all.push_back(std::move(section));
  all.push_back(Compile());
  all.push_back(Nebula());
  all.push_back(Terrace());
  return all;
}

}  // namespace terrace
