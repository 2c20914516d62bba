// The training loop: text in, loss, gradients, optimizer, and how long each
// took by its own readings of the clock.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "examples/train_gpt/command_line/flags.h"
#include "examples/train_gpt/corpus.h"
#include "examples/train_gpt/gpt.h"
#include "examples/train_gpt/model_optimizer.h"
#include "examples/train_gpt/report.h"

namespace train_gpt {

// Called after each step, whose times do not count it.
using StepObserver = std::function<absl::Status(const StepRecord&)>;

// The steps behind `completed` up to `flags.steps`. The first error ends it: of
// the text, of the optimizer, of the observer, or a loss that is not finite;
// Cancelled: a signal asked for it, and model and optimizer are as after the
// last step that was observed.
absl::Status Train(const Flags& flags, const Corpus& corpus, Gpt& model,
                   ModelOptimizer& optimizer, const StepObserver& observer,
                   int64_t completed = 0);

}  // namespace train_gpt
