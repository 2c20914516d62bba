// DeepSpeed's JSON, read for Terrace: the settings that it asks for, as plain
// values, and a note for each key that is accepted but has no say here.
//
// Strict: what changes the mathematics is followed or refused, never ignored.
// docs/deepspeed.md lists the keys. Errors are one line that names the path of
// the key, its line in the text, the value and what is allowed:
//   InvalidArgument    the text is wrong, or contradicts itself or the caller
//   Unimplemented      DeepSpeed has it, Terrace does not
//   ResourceExhausted  (CheckZeroConfigResources) not enough memory or disk
//
//   ZeroConfigCaller caller{.world_size = 1,
//                           .parameter_dtype = DType::kBFloat16};
//   auto settings = ReadZeroConfig(text, caller);
//   auto options = OptionsFromZeroConfig(*settings, parameters, budget_bytes);
//   for (const auto& note : settings->notes) Show(note.path, note.text);
//
// Thread-safe: pure functions, but for CheckZeroConfigResources, which looks
// at the machine.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "terrace/adam.h"
#include "terrace/optimizer.h"
#include "terrace/options.h"
#include "terrace/tensor.h"

namespace terrace {

// What the caller knows and the text may leave to it.
struct ZeroConfigCaller {
  int64_t world_size = 1;  // ranks that share the batch
  // Whether they also share the optimizer's state, as stage 1 and above ask.
  bool shares_state = false;
  // Of the model. Given: the text must agree, unless the model is cast. Not
  // given: the text decides.
  std::optional<DType> parameter_dtype;
  // Of all of the model's. The caller offloads those in CPU memory: to "nvme",
  // where the text says so; kOffloaded: into the library's memory for "cpu"
  // too.
  enum class Parameters : uint8_t {
    kElsewhere,
    kInCpuMemory,
    kOffloadedToNvme,
    kOffloaded,
  };
  struct Model {
    Parameters parameters = Parameters::kElsewhere;
    // Where cpu_checkpointing says so, on one rank.
    bool offloads_activations = false;
    // To the type that bf16 or fp16 asks for, whatever parameter_dtype is, and
    // its buffers to buffer_dtype.
    bool is_cast = false;
    // Names of those beside Adam and AdamW that the caller makes for it.
    std::set<std::string> optimizers;
  };
  Model model;
  // In place of an `optimizer` that is not in the text.
  std::optional<AdamOptions> adam;
  // false: the text was made of values; messages name no line of it.
  bool text_has_lines = true;

  // For keys whose value is "auto" or that are absent. Where one has no value
  // here, the default holds, or what follows from the others, or it is
  // InvalidArgument, which names the field as `micro_batch=`. A number of the
  // text goes before the caller's, and a note of kContradicted says so; of the
  // batch also one that follows from two of the text's. Numbers of the batch
  // that do not multiply out otherwise are InvalidArgument.
  std::optional<double> learning_rate, beta1, beta2, epsilon, weight_decay;
  std::optional<double> gradient_clipping;
  std::optional<double> warmup_min_lr, warmup_max_lr;
  std::optional<int64_t> warmup_num_steps, total_num_steps;
  std::optional<int64_t> micro_batch, accumulation_steps, train_batch;
  // Names of those above that were not asked for: they stand for "auto", and
  // for a batch of which the text has no size, and contradict nothing.
  std::set<std::string> defaults;
};

struct ZeroConfigNote {
  enum class Kind : uint8_t {
    kSized,         // accepted; Terrace chooses the size itself
    kIgnored,       // accepted; without effect on any result
    kDeprecated,    // an old spelling or place, forwarded
    kMeaning,       // does something else than it seems to say
    kContradicted,  // goes before another number of the caller's
  };
  Kind kind = Kind::kIgnored;
  std::string path;  // "zero_optimization.stage"
  std::string text;
};

// The learning rate as a function of the step, as DeepSpeed's schedulers set
// it: before the first step by their constructor, then once after each step
// that was not skipped.
struct LearningRateSchedule {
  enum class Kind : uint8_t {
    kConstant,
    kWarmup,        // WarmupLR
    kWarmupDecay,   // WarmupDecayLR
    kWarmupCosine,  // WarmupCosineLR
    kRangeTest,     // LRRangeTest
    kOneCycle,      // OneCycle
  };
  Kind kind = Kind::kConstant;
  double base = 1e-3;       // of the optimizer
  double least = 0;         // warmup_min_lr, lr_range_test_min_lr, cycle_min_lr
  double most = 0;          // warmup_max_lr, cycle_max_lr
  double least_ratio = 0;   // warmup_min_ratio
  double cosine_ratio = 0;  // cos_min_ratio
  bool logarithmic = true;  // warmup_type "log"; else linear
  int64_t warmup_steps = 0;  // at least 2
  int64_t total_steps = 0;
  int64_t step_size = 0;   // lr_range_test_step_size
  double rate = 0;         // lr_range_test_step_rate, decay_lr_rate
  bool staircase = false;  // lr_range_test_staircase
  int64_t first_steps = 0, second_steps = 0;    // halves of the cycle
  int64_t first_stairs = 0, second_stairs = 0;  // 0: continuous
  int64_t decay_steps = 0;                      // decay_step_size; 0: none
  // OneCycle may turn the first beta the other way round; the second is 0.99.
  bool cycles_momentum = false;
  double least_momentum = 0.8, most_momentum = 0.9;
};

// Of the step-th step, counted from 1, skipped ones not counted.
double LearningRateAt(const LearningRateSchedule& schedule, int64_t step);

// `adam` with what the schedule says of that step: the rate, and the betas
// where they are cycled. For StepArguments::groups.
AdamOptions AdamAt(const LearningRateSchedule& schedule, int64_t step,
                   AdamOptions adam);

// fp16: what is to be done about gradients too small or too large for it.
struct LossScaleSettings {
  bool dynamic = true;
  double initial = 65536;               // or the fixed scale
  int64_t window = 1000;                // good steps before it doubles
  int64_t hysteresis = 2;               // bad steps before it halves
  bool consecutive_hysteresis = false;  // good steps refill the hysteresis
  double least = 1;
};

enum class OffloadDevice : uint8_t { kNone, kCpu, kNvme };
struct OffloadTarget {
  OffloadDevice device = OffloadDevice::kNone;
  std::vector<std::string> paths;  // of kNvme: at least one, or a daemon's
  std::string key;                 // of the text, that names these paths
};
// One of ZeroConfigCaller::Model::optimizers.
struct CallersOptimizer {
  std::string type;    // as the caller has it
  std::string params;  // a JSON object; no value is "auto"
};
// What the caller does with its model.
struct CallersPart {
  // Where it offloads to. kNone: they stay; kCpu: all of them into the
  // library's memory.
  OffloadTarget parameters;
  OffloadTarget activations;          // kNone or kNvme
  std::optional<DType> buffer_dtype;  // absent: as they are
  std::optional<CallersOptimizer> optimizer;
};
enum class TagValidation : uint8_t { kIgnore, kWarn, kFail };

// As given; Terrace's engine chooses its own. Echoed by getters only.
struct AioSettings {
  int64_t block_size = 1048576;
  int64_t queue_depth = 8;
  int64_t intra_op_parallelism = 1;
  bool single_submit = false;
  bool overlap_events = true;
};

// How the offloaded state is updated.
struct UpdateSettings {
  bool pipeline = false;                  // pipeline_read or pipeline_write
  std::optional<int64_t> sub_group_size;  // elements; bounds a chunk
  double cpu_cores_share = 1;             // of the cores
};

struct ZeroConfigSettings {
  int stage = 0;  // of ZeRO

  // Absent: neither the text nor the caller has one, or callers.optimizer is
  // in its place.
  std::optional<AdamOptions> adam;
  LearningRateSchedule schedule;
  double max_gradient_norm = 1.0;  // 0: no clipping

  // micro_batch * accumulation_steps * world_size == train_batch.
  int64_t micro_batch = 1;
  int64_t accumulation_steps = 1;
  int64_t train_batch = 1;

  DType parameter_dtype = DType::kFloat32;
  std::optional<LossScaleSettings> loss_scale;  // fp16 only
  bool skip_nonfinite = false;  // inf or NaN: the step is skipped

  OffloadDevice offload_device = OffloadDevice::kNone;
  std::vector<std::string> nvme_paths;  // of kNvme: at least one, or a daemon's
  // Terrace's own key: the socket of a host's daemon (docs/daemon.md) that has
  // the memory and the disks of all that is offloaded to "nvme"; empty: none.
  std::string daemon;
  CallersPart callers;
  UpdateSettings update;
  AioSettings aio;
  TagValidation tag_validation = TagValidation::kWarn;

  std::vector<ZeroConfigNote> notes;
  // Paths of the keys that the text gives a value of their own, neither null
  // nor "auto", in alphabetical order.
  std::vector<std::string> given;
};

absl::StatusOr<ZeroConfigSettings> ReadZeroConfig(
    absl::string_view text, const ZeroConfigCaller& caller);

struct ZeroConfigOptions {
  Options runtime;
  OptimizerOptions optimizer;
};

// The settings as Terrace's own options for these parameters. budget_bytes is
// the host memory that the optimizer's state may take; DeepSpeed's JSON has no
// key for it. 0: without NVMe, the whole state; with it, a tenth of the state
// but not less than the pipeline's minimum. InvalidArgument: no optimizer in
// the settings, or a parameter whose dtype is not theirs.
absl::StatusOr<ZeroConfigOptions> OptionsFromZeroConfig(
    const ZeroConfigSettings& settings,
    absl::Span<const ParameterSpec> parameters, int64_t budget_bytes = 0);

// Looks, before the first byte moves, where no daemon does: every path exists,
// is a directory, can be written and has room; memory has room for the budget.
// Returns what is worth knowing: a path without direct I/O. NotFound,
// InvalidArgument or PermissionDenied names the key and the path;
// ResourceExhausted the bytes needed, by kind, and those that are free.
absl::StatusOr<std::vector<ZeroConfigNote>> CheckZeroConfigResources(
    const ZeroConfigOptions& options,
    absl::Span<const ParameterSpec> parameters);

// Every key that is known, for listings.
struct ZeroConfigKey {
  std::string path;
  std::string allowed;    // "an integer from 0 to 3"
  std::string fallback;   // the default; "null": none
  std::string treatment;  // "read", "sized by Terrace", "ignored", ...
  std::string why;
};
std::vector<ZeroConfigKey> ZeroConfigKeys();

}  // namespace terrace
