// The same training again in memory, twice: with the serial reference, whose
// losses and final parameters must be the same bits, and with LibTorch's own
// AdamW, which must come close. Close are the losses and what the optimizers
// compute: of 16-bit parameters the fp32 masters, since where two of those
// that agree to seven digits lie beside a rounding point, the parameters
// differ by a whole last place.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/train_gpt/command_line/flags.h"
#include "examples/train_gpt/corpus.h"
#include "examples/train_gpt/gpt.h"
#include "examples/train_gpt/model_optimizer.h"
#include "examples/train_gpt/parameter_file.h"
#include "examples/train_gpt/report.h"

namespace train_gpt {

// What a run came to, in files of that directory: its parameters and, where
// they are 16-bit, their masters.
struct FinalParameters {
  ParameterFile parameters;
  std::optional<ParameterFile> masters;
};

absl::StatusOr<FinalParameters> SaveParameters(const Gpt& model,
                                               ModelOptimizer& optimizer,
                                               const std::string& directory);

// `losses` and `final_parameters` are those of the run to be verified.
absl::StatusOr<Verification> Verify(const Flags& flags, const Corpus& corpus,
                                    const std::vector<double>& losses,
                                    const FinalParameters& final_parameters);

}  // namespace train_gpt
