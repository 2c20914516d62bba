// What a daemon before this one had for a process that lives still: its
// runtime's image, memories and files, which nobody else has.
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
#include "daemon/jobs/media/medium_source.h"
#include "runtime/tensor/runtime_image.h"
#include "terrace/tier.h"
#include "tiers/disk/disk_file.h"
#include "tiers/medium.h"

namespace terrace {

struct KeptJob {
  bool HasPins() const { return !image.pins.empty() || file.held_pins(); }

  std::string key;  // of its descriptors' names
  ImageFile file;
  RuntimeImage image;
  OwnDescriptor memory;
  OwnDescriptor process;  // OpenProcess, and it lived then
  std::vector<std::unique_ptr<DiskFile>> disks;
  std::vector<std::unique_ptr<Medium>> media;
  JobToken token = {};  // by which its process goes on with it
};

// Names of its descriptors in a store.
std::string ImageName(const std::string& key);
std::string MemoryName(const std::string& key);
std::string LockName(const std::string& key, size_t disk);
std::string MediumName(const std::string& key, size_t medium);
// All of them, the image first.
std::vector<std::string> NamesOf(const std::string& key,
                                 const ImageFacts& facts);
// The key in such a name; "": it is none.
std::string KeyOf(absl::string_view name);

// The tiers of a configuration that a job rests on.
struct KeptTiers {
  const std::vector<TierSpec>& disks;
  const std::vector<TierSpec>& mapped;
  const MediumSource* media = nullptr;
};

// From what a store has of that key, by its names; the disks are opened again,
// and waited for until then, and so is what is mapped; where something else is
// wrong they are removed. NotFound: the process has gone; InvalidArgument:
// something of it is not there, or is another's, or the tiers are others;
// ResourceExhausted: there are no descriptors; DeadlineExceeded and DataLoss as
// ReopenDiskFile and ReadImage have it.
absl::StatusOr<KeptJob> OpenKeptJob(const std::string& key,
                                    std::map<std::string, OwnDescriptor> files,
                                    const KeptTiers& tiers,
                                    absl::Time deadline);

}  // namespace terrace
