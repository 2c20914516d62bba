// One of --nvme-path, or of the disks of --tier: a directory to make files in,
// or a file or a block device that the run is given as a whole.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace train_gpt {

struct StatePath {
  std::string path;       // as the user named it
  std::string directory;  // it, or the folder of the file; of a device empty
  // Of the file system; of a device what it has for the state.
  int64_t free_bytes = 0;
  int64_t used_bytes = 0;  // by the file already, for the state to use again
  // The same for two names of one thing: of a directory or file its file
  // system and inode, of a device its number and 0.
  std::pair<dev_t, ino_t> identity;

  bool is_device() const { return directory.empty(); }
};

// NotFound; InvalidArgument: neither directory, file nor block device;
// PermissionDenied: it cannot be read and written. Changes nothing: whether a
// file or device holds data of others the library says.
absl::StatusOr<StatePath> InspectStatePath(const std::string& path);

// For nameless files beside the state: the first of these paths, or the folder
// of such a file, that can be written to; if there is none, as with devices
// alone, the working directory.
std::string ScratchDirectory(const std::vector<std::string>& paths);

}  // namespace train_gpt
