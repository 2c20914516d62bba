// A job's own subdirectory of a disk path, locked as long as this lives.
//
// <path>/terrace-<pid>-<random>-<host>/ holds `lock`, on which an exclusive
// flock is held, and `state`. Locks die with their holder, so an unlocked one
// is what a killed job left: later jobs on the path remove it (stale_jobs.h),
// in the background and where they lack room. A locked one is never touched,
// nor is anything of another name.
//
// There is no lock on the path, so that no start waits for another, or for a
// checkpoint that is saved there: a directory whose lock another start got
// before this job did is given up for one of another name.
//
// A lock belongs to the open file, so two jobs of one process do not meet
// either. A forked child has closed it, and removes nothing.
// One thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/process.h"
#include "tiers/disk/stale_jobs.h"

namespace terrace {

class JobDirectory {
 public:
  // NotFound: `path` does not exist; InvalidArgument: it is no directory;
  // PermissionDenied: it cannot be written; ResourceExhausted: the disk is
  // full, also without what killed jobs left, and which may live on another
  // host; Unavailable: its file system has no locks.
  static absl::StatusOr<std::unique_ptr<JobDirectory>> Create(
      const std::string& path);
  // Another process's, which has gone: `lock` is what that one held it by. It
  // stays what it is until Own.
  // NotFound: it is not there any more; InvalidArgument: its lock is another.
  static absl::StatusOr<std::unique_ptr<JobDirectory>> Reopen(
      const std::string& path, const std::string& name, OwnDescriptor lock);
  // From here on it is this job's, and goes with it.
  void Own() { made_ = true; }
  // Removes the directory unless Remove did.
  ~JobDirectory();
  JobDirectory(const JobDirectory&) = delete;
  JobDirectory& operator=(const JobDirectory&) = delete;

  int fd() const { return directory_.get(); }
  std::string state_file() const;
  const std::string& name() const { return name_; }
  // Whose Share holds it as well.
  const OwnDescriptor& lock() const { return lock_; }

  // What killed jobs left on the path, until Remove: stale_jobs.h.
  bool Reclaim() { return stale_->RemoveSome(); }
  bool MakeRoom() { return stale_->MakeRoom(); }
  // Those that are left alone, since they may live on another host:
  // "<path>/<name>: of process 12 on node7".
  std::vector<std::string> jobs_elsewhere() const;

  // Removes `state`, the lock and the directory. Once.
  absl::Status Remove();
  // False in a forked child.
  bool IsOwner() const { return process_.IsCurrent(); }

 private:
  JobDirectory() = default;
  absl::Status Make();
  absl::StatusOr<bool> TryToMake();
  void CloseOwn();
  std::string InPath(const std::string& name) const;

  std::string path_;  // as the user named it
  std::string name_;  // in the path
  const Process process_;
  OwnDescriptor opened_path_;
  OwnDescriptor directory_;
  OwnDescriptor lock_;
  bool made_ = false;
  std::optional<StaleJobs> stale_;  // once the path is open
};

}  // namespace terrace
