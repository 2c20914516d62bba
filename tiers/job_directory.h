// A job's own subdirectory of a disk path, locked as long as this lives.
//
// <path>/terrace-<pid>-<random>/ holds `lock`, on which an exclusive flock is
// held, and `state`. Locks die with their holder, so an unlocked one is what
// a killed job left: it is removed when the next job opens the path. A locked
// one is never touched, nor is anything of another name. Making and reclaiming
// happen under a lock on the path itself, so that two jobs never see each
// other's half-made directories.
//
// A lock belongs to the open file, so two jobs of one process do not meet
// either. A forked child shares it: there the destructor only closes.
// One thread at a time.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

class JobDirectory {
 public:
  // NotFound: `path` does not exist; InvalidArgument: it is no directory;
  // PermissionDenied: it cannot be written; ResourceExhausted: the disk is
  // full; Unavailable: others hold the path's lock for too long.
  static absl::StatusOr<std::unique_ptr<JobDirectory>> Create(
      const std::string& path);
  // Removes the directory unless Remove did.
  ~JobDirectory();
  JobDirectory(const JobDirectory&) = delete;
  JobDirectory& operator=(const JobDirectory&) = delete;

  int fd() const { return fd_; }
  std::string state_file() const;

  // Removes `state`, the lock and the directory. Once.
  absl::Status Remove();
  // False in a forked child.
  bool IsOwner() const;

 private:
  JobDirectory() = default;
  absl::Status MakeIn(int path_fd);
  void CloseAll();

  std::string path_;  // as the user named it
  std::string name_;  // in the path
  int path_fd_ = -1;
  int fd_ = -1;  // of the directory
  int lock_fd_ = -1;
  int owner_pid_ = 0;
  bool made_ = false;
};

}  // namespace terrace
