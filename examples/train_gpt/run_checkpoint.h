// --save, --save-every and --resume: a run that goes on as if it had never
// been interrupted, bit for bit.
//
// The checkpoint holds parameters, the optimizer's state and counters, the
// step, fp16's loss scale, and the numbers that the run was made from. That is
// all: which text a
// step reads is a function of --seed and the step (ReadBatch), the learning
// rate one of the step, and nothing else in a run is random once the weights
// are drawn. What may differ in the run that goes on: budget, paths, engine,
// --steps. What may not: the model. What then changes the losses (--seed,
// --batch, the text ...) is said, and done.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/train_gpt/command_line/flags.h"
#include "examples/train_gpt/corpus.h"
#include "examples/train_gpt/gpt.h"
#include "examples/train_gpt/trainer.h"
#include "terrace/optimizer.h"

namespace train_gpt {

// Before anything large is made: whether --save can be written to and --resume
// is of this model, with one line that says why not. Prints what will differ.
absl::Status PrepareCheckpoints(const Flags& flags, const Corpus& corpus);

// Fills model and optimizer from --resume and returns how far it was trained;
// without --resume, not at all.
absl::StatusOr<Progress> Resume(const Flags& flags, Gpt& model,
                                terrace::OffloadedOptimizer& optimizer);

// To --save. Prints a line.
absl::Status Save(const Flags& flags, const Corpus& corpus, Gpt& model,
                  terrace::OffloadedOptimizer& optimizer,
                  const Progress& progress);

// Whether --save and --save-every ask for it after this step.
bool SaveIsDue(const Flags& flags, int64_t step);

}  // namespace train_gpt
