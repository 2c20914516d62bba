// train_gpt's command line. Plain values, no LibTorch. Every mistake is one
// InvalidArgument line that names the flag and what it takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "examples/train_gpt/model_shape.h"
#include "terrace/adam.h"
#include "terrace/options.h"
#include "terrace/zero_config.h"

namespace train_gpt {

enum class Dtype { kFloat32, kBFloat16, kFloat16 };
terrace::DType DTypeOf(Dtype dtype);
enum class OptimizerKind { kAdamW, kSgd };

// Of the state, where paths come without a budget.
inline constexpr double kBudgetPercent = 10;

// How much of the optimizer's state may be in memory: bytes, or a share of
// the state.
struct MemoryBudget {
  int64_t bytes = 0;
  // Used when bytes is 0: at least what works.
  double percent = 0;

  bool given() const { return bytes > 0 || percent > 0; }
  int64_t Of(int64_t state_bytes) const;
};

// What a scheduler of --config leaves open.
struct Warmup {
  int64_t steps = 0;
  double least_rate = 0;
  std::optional<double> most_rate;  // absent: the optimizer's
};

struct Flags {
  ModelShape shape;
  std::string data;  // empty: the default corpus
  int64_t batch = 4;
  int64_t seq = 0;  // tokens a row; ParseFlags makes it at most the context
  int64_t accumulate = 1;
  double learning_rate = 3e-4;
  // AdamW's, the same in every mode, so that runs can be compared. Its rate is
  // that of a step without a schedule.
  terrace::AdamOptions adam = {.learning_rate = 3e-4, .beta2 = 0.95};
  terrace::LearningRateSchedule schedule = {.base = 3e-4};
  Warmup warmup;
  double clip = 1.0;            // global L2 norm; 0: no clipping
  bool skip_nonfinite = false;  // a step with an inf or NaN changes nothing
  // Of kFloat16 only: what losses are multiplied by.
  std::optional<terrace::LossScaleSettings> loss_scale;
  int64_t threads = 0;  // 0: as many as the process may use
  int64_t steps = 20;
  uint64_t seed = 1;
  Dtype dtype = Dtype::kFloat32;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  bool help = false;

  std::string config;  // file of DeepSpeed's JSON; empty: none
  std::vector<terrace::ZeroConfigNote> notes;  // on its keys

  // The optimizer's state on disk: together, or not at all.
  MemoryBudget budget;
  std::vector<std::string> nvme_paths;
  // Of --config, where the parameters are; empty: in memory. The state is in
  // the same place, or in memory.
  std::vector<std::string> parameter_paths;
  // Of --tier, which stands for both: the budget and the paths are theirs.
  std::vector<terrace::TierSpec> tiers;
  // The socket of a host's daemon, which keeps the state instead, and by which
  // of the user's jobs; empty: none.
  std::string daemon;
  // Of --config, the same for the parameters.
  std::string parameter_daemon;
  std::string job;
  bool unsafe_media = false;  // an ordinary file may play persistent memory
  terrace::EngineKind engine = terrace::EngineKind::kAuto;
  terrace::PaceOptions pace;
  std::string machine_profile;    // of terrace tune; empty: none
  int64_t chunk_bytes = 8 << 20;  // of state, at most
  int update_threads = 0;         // 0: as many as threads
  bool verify = false;
  std::string json;  // file to write; empty: none

  // Directories of checkpoints; empty: none.
  std::string save, resume;
  int64_t save_every = 0;  // steps; 0: after the last only

  // Of the state. A budget may be the parameters' alone.
  bool offloaded() const {
    return budget.given() &&
           (!parameters_are_below() || !nvme_paths.empty() || !daemon.empty());
  }
  bool parameters_are_below() const {
    return !parameter_paths.empty() || !parameter_daemon.empty();
  }
  bool joined() const { return parameters_are_below() && offloaded(); }
};

// `arguments` without the program's name. With --help the rest is not read.
absl::StatusOr<Flags> ParseFlags(absl::Span<const std::string> arguments);

// The text of --help: a line for each flag.
std::string Usage();

}  // namespace train_gpt
