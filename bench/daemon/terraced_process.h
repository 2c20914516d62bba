// A terraced of the same build that a benchmark starts, in a directory of its
// own, and ends.
//
// One thread.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace::bench {

class TerracedProcess {
 public:
  // `config` is the configuration without its tiers: 256 MiB of memory, and
  // `disk` of a directory below `path`. Serves when this returns.
  static absl::StatusOr<std::unique_ptr<TerracedProcess>> Start(
      const std::string& path, const std::string& config,
      const std::string& disk = "4GiB");
  ~TerracedProcess();
  TerracedProcess(const TerracedProcess&) = delete;
  TerracedProcess& operator=(const TerracedProcess&) = delete;

  pid_t pid() const { return child_; }
  std::string address() const { return "unix:" + directory_ + "/socket"; }

 private:
  explicit TerracedProcess(std::string directory)
      : directory_(std::move(directory)) {}
  absl::Status Run(const std::string& config, const std::string& disk);

  const std::string directory_;
  pid_t child_ = 0;
  int log_ = -1;  // what the daemon says
};

}  // namespace terrace::bench
