#include "examples/train_gpt/command_line/checkpoint_flags.h"

#include "absl/strings/str_cat.h"

namespace train_gpt {

absl::Status CheckCheckpoints(const Flags& flags) {
  const auto needs = [](const char* flag, const char* other) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " needs ", other));
  };
  if (flags.save_every > 0 && flags.save.empty()) {
    return needs("--save-every", "--save");
  }
  constexpr char kBudget[] =
      "--nvme-path or --tier: without them LibTorch's optimizer steps, whose "
      "state is not Terrace's to keep";
  if (!flags.offloaded() && !flags.save.empty()) {
    return needs("--save", kBudget);
  }
  if (!flags.offloaded() && !flags.resume.empty()) {
    return needs("--resume", kBudget);
  }
  if (flags.verify && !flags.resume.empty()) {
    return absl::InvalidArgumentError(
        "--verify compares whole runs: not one that begins with --resume");
  }
  return absl::OkStatus();
}

}  // namespace train_gpt
