// The training loop: text in, loss, gradients, optimizer, and how long each
// took by its own readings of the clock.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "examples/train_gpt/command_line/flags.h"
#include "examples/train_gpt/corpus.h"
#include "examples/train_gpt/gpt.h"
#include "examples/train_gpt/loss_scale.h"
#include "examples/train_gpt/model_optimizer.h"
#include "examples/train_gpt/report.h"

namespace train_gpt {

// Called after each step, whose times do not count it.
using StepObserver = std::function<absl::Status(const StepRecord&)>;

// How far a run is, beside its model and its optimizer.
struct Progress {
  explicit Progress(const Flags& flags) : loss_scale(flags.loss_scale) {}

  int64_t completed = 0;  // steps, skipped ones among them
  LossScale loss_scale;
};

// The steps behind `progress.completed` up to `flags.steps`. The first error
// ends it: of the text, of the optimizer, of the observer, a loss that is not
// finite, or no loss scale that is small enough; Cancelled: a signal asked for
// it, and model, optimizer and progress are as after the last step that was
// observed.
absl::Status Train(const Flags& flags, const Corpus& corpus, Gpt& model,
                   ModelOptimizer& optimizer, const StepObserver& observer,
                   Progress& progress);
// From the first step on.
absl::Status Train(const Flags& flags, const Corpus& corpus, Gpt& model,
                   ModelOptimizer& optimizer, const StepObserver& observer);

}  // namespace train_gpt
