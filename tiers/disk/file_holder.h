// Whose the file of a disk path is, and what becomes of it in the end: of a
// job's directory, which goes with it, or one that a user has given.
//
// One thread at a time, as DiskFile has it.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "base/process.h"
#include "tiers/disk/given_file.h"
#include "tiers/disk/job_directory.h"
#include "tiers/disk/kept_file.h"

namespace terrace {

class FileHolder {
 public:
  virtual ~FileHolder() = default;  // closes the file
  virtual absl::Status Remove() = 0;
  virtual void OnUse() {}  // an extent is there
  // What killed jobs left beside it, as JobDirectory has it.
  virtual bool reclaims() const { return false; }
  virtual bool Reclaim() { return false; }
  virtual bool MakeRoom() { return false; }
  // As DiskFile has it: the name and the lock alone.
  virtual std::optional<KeptFile> Keep() const { return std::nullopt; }
};

// `state`: the open file in it.
std::unique_ptr<FileHolder> HoldDirectory(
    std::unique_ptr<JobDirectory> directory, OwnDescriptor state);
std::unique_ptr<FileHolder> HoldGiven(std::unique_ptr<GivenFile> given);

}  // namespace terrace
