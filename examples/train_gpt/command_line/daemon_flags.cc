#include "examples/train_gpt/command_line/daemon_flags.h"

#include "absl/strings/str_cat.h"

namespace train_gpt {

absl::Status CheckDaemon(const std::set<std::string>& given,
                         const Flags& flags) {
  if (flags.daemon.empty() && flags.parameter_daemon.empty()) {
    if (flags.job.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("--job needs --daemon");
  }
  for (const char* flag : {"--nvme-path", "--tier", "--unsafe-media",
                           "--io-engine", "--pace", "--machine-profile"}) {
    if (given.count(flag) == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        flag, " and --daemon together: the daemon's configuration says it"));
  }
  if (flags.nvme_paths.empty() && flags.parameter_paths.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--daemon beside paths of --config ", flags.config,
                   ": the daemon's configuration says where they are"));
}

}  // namespace train_gpt
