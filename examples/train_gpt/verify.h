// The same training again in memory, twice: with the serial reference, whose
// losses and final parameters must be the same bits, and with LibTorch's own
// AdamW, which must come close.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/train_gpt/corpus.h"
#include "examples/train_gpt/flags.h"
#include "examples/train_gpt/gpt.h"
#include "examples/train_gpt/parameter_file.h"
#include "examples/train_gpt/report.h"

namespace train_gpt {

// Writes the model's parameters to the file, in order.
absl::Status SaveParameters(const Gpt& model, ParameterFile* file);

// `losses` and `parameters` are those of the run to be verified.
absl::StatusOr<Verification> Verify(const Flags& flags, const Corpus& corpus,
                                    const std::vector<double>& losses,
                                    const ParameterFile& parameters);

}  // namespace train_gpt
