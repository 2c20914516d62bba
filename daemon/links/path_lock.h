// That one daemon alone has a disk's directory for its jobs: two would each
// count all of the disk as theirs. Programs without a daemon may have files
// there all the same.
//
// A value; it moves.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/process.h"

namespace terrace {

class PathLock {
 public:
  // Unavailable: another daemon has it, whose process is named. A file system
  // without such locks has none, which is no error; nor is a path that cannot
  // be opened, as whoever uses it says so.
  static absl::StatusOr<PathLock> Take(const std::string& path);

 private:
  explicit PathLock(OwnDescriptor directory)
      : directory_(std::move(directory)) {}

  OwnDescriptor directory_;  // locked, as long as it is open
};

}  // namespace terrace
