// A model with its weights: in memory, or below, from where each is in memory
// while an operation uses it and otherwise as far as the budget has room. They
// are made, or read from a checkpoint, one by one, so that more than the budget
// is never in memory.
//
// One thread at a time. Errors say the flag, the path or the tensor.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/infer_gpt/infer_flags.h"
#include "examples/infer_gpt/weight_plan.h"
#include "examples/train_gpt/gpt.h"
#include "terrace/checkpoint.h"
#include "terrace/runtime.h"
#include "terrace/torch/hook.h"

namespace infer_gpt {

class Weights {
 public:
  // `checkpoint` may be null: random ones. `flags` has their shape and type.
  static absl::StatusOr<std::unique_ptr<Weights>> Make(
      const Flags& flags, terrace::Checkpoint* checkpoint);
  // Closes if Close did not.
  ~Weights();

  const train_gpt::Gpt& model() const { return *model_; }
  const WeightPlan& plan() const { return plan_; }  // zeros in memory
  // A pass begins, which uses them in the order of the last one.
  void BeginPass();

  // Since the weights are there; zeros in memory.
  struct Moved {
    int64_t bytes_read = 0, bytes_written = 0;
    int64_t fetches = 0, fetches_ahead = 0;
    int64_t memory_peak_bytes = 0;
    double blocked_seconds = 0;
  };
  Moved moved() const;

  // The files are gone then, and the model cannot be used.
  absl::Status Close();

 private:
  explicit Weights(const Flags& flags) : flags_(flags) {}
  absl::Status MakeBelow();
  absl::Status MakeModel(bool is_random);
  absl::Status Load(terrace::Checkpoint& checkpoint);
  Moved Count() const;

  const Flags& flags_;
  WeightPlan plan_;
  std::unique_ptr<terrace::Runtime> runtime_;  // null in memory
  std::unique_ptr<terrace::Hook> hook_;
  std::unique_ptr<train_gpt::Gpt> model_;
  Moved before_;
};

}  // namespace infer_gpt
