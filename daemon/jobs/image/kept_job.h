// What a daemon before this one had for a process that lives still: its
// runtime's image, memory and files, which nobody else has.
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "daemon/jobs/image/image_file.h"
#include "runtime/tensor/runtime_image.h"
#include "terrace/tier.h"
#include "tiers/disk/disk_file.h"

namespace terrace {

struct KeptJob {
  bool HasPins() const { return !image.pins.empty() || file.held_pins(); }

  std::string key;  // of its descriptors' names
  ImageFile file;
  RuntimeImage image;
  OwnDescriptor memory;
  OwnDescriptor process;  // OpenProcess, and it lived then
  std::vector<std::unique_ptr<DiskFile>> disks;
  JobToken token = {};  // by which its process goes on with it
};

// Names of its descriptors in a store.
std::string ImageName(const std::string& key);
std::string MemoryName(const std::string& key);
std::string LockName(const std::string& key, size_t disk);
// The key in such a name; "": it is none.
std::string KeyOf(absl::string_view name);

// From what a store has of that key, by its names; the disks are opened again,
// at these places, and waited for until then; where something else is wrong
// they are removed. NotFound: the process has gone;
// InvalidArgument: something of it is not there, or is another's, or the disks
// are others; ResourceExhausted: there are no descriptors; DeadlineExceeded and
// DataLoss as ReopenDiskFile and ReadImage have it.
absl::StatusOr<KeptJob> OpenKeptJob(const std::string& key,
                                    std::map<std::string, OwnDescriptor> files,
                                    const std::vector<TierSpec>& disks,
                                    absl::Time deadline);

}  // namespace terrace
