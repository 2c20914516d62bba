// The training loop: text in, loss, gradients, optimizer, and how long each
// took by its own readings of the clock.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "examples/train_gpt/corpus.h"
#include "examples/train_gpt/flags.h"
#include "examples/train_gpt/gpt.h"
#include "examples/train_gpt/model_optimizer.h"
#include "examples/train_gpt/report.h"

namespace train_gpt {

// Called after each step.
using StepObserver = std::function<void(const StepRecord&)>;

// `flags.steps` steps. The first error ends it: of the text, of the optimizer,
// or a loss that is not finite; Cancelled: a signal asked for it.
absl::Status Train(const Flags& flags, const Corpus& corpus, Gpt& model,
                   ModelOptimizer& optimizer, const StepObserver& observer);

}  // namespace train_gpt
