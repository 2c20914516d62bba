#include "examples/train_gpt/command_line/parameter_flags.h"

#include "absl/strings/str_cat.h"

namespace train_gpt {

absl::Status CheckParameterPlace(const std::set<std::string>& given,
                                 const Flags& flags) {
  if (!flags.parameters_are_below()) return absl::OkStatus();
  // Checkpoints are made of whole parameters in memory; paths and paces of
  // tiers are the state's alone.
  for (const char* flag : {"--save", "--resume", "--tier", "--pace"}) {
    if (given.count(flag) == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        flag, " needs parameters in memory, and --config ", flags.config,
        " has zero_optimization.offload_param.device \"nvme\""));
  }
  return absl::OkStatus();
}

}  // namespace train_gpt
