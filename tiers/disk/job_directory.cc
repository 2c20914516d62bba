#include "tiers/disk/job_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "base/system/file_lock.h"
#include "tiers/disk/job_files.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

// Each one more takes another start that looks just when this one makes its
// directory.
constexpr int kTries = 100;

std::string Path(const std::string& path) {
  return absl::StrCat("path '", path, "'");
}

// It was removed. The second: a network file system knew it still.
bool IsGone(int error) { return error == ENOENT || error == ESTALE; }

}  // namespace

absl::StatusOr<std::unique_ptr<JobDirectory>> JobDirectory::Create(
    const std::string& path) {
  std::unique_ptr<JobDirectory> job(new JobDirectory);
  job->path_ = path;
  job->opened_path_ =
      OwnDescriptor::Open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (!job->opened_path_.ok()) {
    return ErrnoError(Path(path), "cannot open directory", errno, path);
  }
  job->stale_.emplace(job->opened_path_.get());
  absl::Status status = job->Make();
  for (bool more = true; more && LacksRoom(status);) {
    more = job->MakeRoom();
    status = job->Make();
  }
  const std::vector<std::string> elsewhere = job->jobs_elsewhere();
  if (LacksRoom(status) && !elsewhere.empty()) {
    return Reworded(status, absl::StrCat(status.message(),
                                         "; left alone, as they may live on "
                                         "another host: ",
                                         absl::StrJoin(elsewhere, "; ")));
  }
  TERRACE_RETURN_IF_ERROR(status);
  return job;
}

std::vector<std::string> JobDirectory::jobs_elsewhere() const {
  std::vector<std::string> told = stale_->elsewhere();
  for (std::string& each : told) each = InPath(each);
  return told;
}

absl::Status JobDirectory::Make() {
  for (int i = 0; i < kTries; ++i) {
    TERRACE_ASSIGN_OR_RETURN(made_, TryToMake());
    if (made_) return absl::OkStatus();
    CloseOwn();
  }
  return WithIoFault(
      absl::UnavailableError(absl::StrCat(
          Path(path_), ": others took ", kTries,
          " directories that this job made for those of dead ones")),
      {.error = EAGAIN, .path = path_});
}

// False: another start took it for a dead one's, and removes it. A start that
// looks for those gets the lock first, or finds it held; so once it is held
// here, and is still there by its name, no other start will have it.
absl::StatusOr<bool> JobDirectory::TryToMake() {
  const int path_fd = opened_path_.get();
  name_ = NewJobName();
  if (mkdirat(path_fd, name_.c_str(), 0700) != 0) {
    if (errno == EEXIST) return false;
    return ErrnoError(Path(path_), "cannot make a directory", errno, path_);
  }
  const auto failed = [this, path_fd](absl::Status status) {
    if (directory_.ok()) unlinkat(fd(), kJobLockName, 0);
    unlinkat(path_fd, name_.c_str(), AT_REMOVEDIR);
    CloseOwn();
    return status;
  };
  directory_ = OwnDescriptor::OpenAt(
      path_fd, name_, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (!directory_.ok()) {
    if (IsGone(errno)) return false;
    return failed(
        ErrnoError(Path(path_), "cannot open what it made", errno, path_));
  }
  lock_ = OwnDescriptor::OpenAt(fd(), kJobLockName,
                                O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (!lock_.ok()) {
    if (IsGone(errno)) return false;
    return failed(
        ErrnoError(Path(path_), "cannot make a lock file", errno, path_));
  }
  if (!TryLock(lock_.get())) {
    if (errno == EWOULDBLOCK) return false;
    return failed(
        ErrnoError(Path(path_), "its files cannot be locked", errno, path_));
  }
  const std::string lock = absl::StrCat(name_, "/", kJobLockName);
  if (faccessat(path_fd, lock.c_str(), F_OK, 0) == 0) return true;
  if (IsGone(errno)) return false;
  return failed(
      ErrnoError(Path(path_), "cannot look for its lock", errno, path_));
}

absl::StatusOr<std::unique_ptr<JobDirectory>> JobDirectory::Reopen(
    const std::string& path, const std::string& name, OwnDescriptor lock) {
  std::unique_ptr<JobDirectory> job(new JobDirectory);
  job->path_ = path;
  job->name_ = name;
  job->opened_path_ =
      OwnDescriptor::Open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (!job->opened_path_.ok()) {
    return ErrnoError(Path(path), "cannot open directory", errno, path);
  }
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  if (IsJobName(name)) {
    job->directory_ =
        OwnDescriptor::OpenAt(job->opened_path_.get(), name, kFlags);
  }
  struct stat there = {};
  struct stat held = {};
  const bool is_there =
      job->directory_.ok() &&
      fstatat(job->fd(), kJobLockName, &there, AT_SYMLINK_NOFOLLOW) == 0;
  if (!is_there) {
    return absl::NotFoundError(
        absl::StrCat(Path(path), ": the directory ", name, " is gone"));
  }
  const bool is_same = fstat(lock.get(), &held) == 0 &&
                       held.st_ino == there.st_ino &&
                       held.st_dev == there.st_dev && TryLock(lock.get());
  if (!is_same) {
    return absl::InvalidArgumentError(absl::StrCat(
        Path(path), ": the lock of the directory ", name, " is another's"));
  }
  job->lock_ = std::move(lock);
  job->stale_.emplace(job->opened_path_.get());
  return job;
}

JobDirectory::~JobDirectory() {
  if (made_ && IsOwner()) {
    RemoveJobFiles(opened_path_.get(), fd(), name_);
  }
  stale_.reset();
}

std::string JobDirectory::state_file() const {
  return InPath(absl::StrCat(name_, "/", kJobStateName));
}

std::string JobDirectory::InPath(const std::string& name) const {
  return absl::StrCat(path_, absl::EndsWith(path_, "/") ? "" : "/", name);
}

absl::Status JobDirectory::Remove() {
  if (!made_ || !IsOwner()) return absl::OkStatus();
  made_ = false;
  stale_->Stop();
  const int error = RemoveJobFiles(opened_path_.get(), fd(), name_);
  if (error == 0) return absl::OkStatus();
  return ErrnoError(Path(path_), absl::StrCat("cannot remove ", name_), error,
                    path_);
}

void JobDirectory::CloseOwn() {
  lock_.Close();
  directory_.Close();
}

}  // namespace terrace
