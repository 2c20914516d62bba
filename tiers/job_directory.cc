#include "tiers/job_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "runtime/base/io_fault.h"
#include "runtime/base/status_macros.h"
#include "tiers/file_lock.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

constexpr char kPrefix[] = "terrace-";
constexpr char kLockName[] = "lock";
constexpr char kStateName[] = "state";
// Held for as long as it takes to make one directory and remove a few stale
// files: ten seconds are a thousand times that.
constexpr absl::Duration kPathLockPatience = absl::Seconds(10);

std::string Path(const std::string& path) {
  return absl::StrCat("path '", path, "'");
}

// The lock on the path; gives it back, also where a child was forked
// meanwhile and shares the open file.
class PathLock {
 public:
  explicit PathLock(int fd) : fd_(fd) {}
  ~PathLock() {
    if (held_) flock(fd_, LOCK_UN);
  }
  PathLock(const PathLock&) = delete;
  PathLock& operator=(const PathLock&) = delete;

  absl::Status Acquire(const std::string& path) {
    held_ = LockWithin(fd_, kPathLockPatience);
    if (held_) return absl::OkStatus();
    const int error = errno;
    return WithIoFault(
        absl::UnavailableError(
            absl::StrCat(Path(path), ": cannot be locked: ", ErrnoName(error))),
        {.error = error, .path = path});
  }

 private:
  int fd_;
  bool held_ = false;
};

// "terrace-<digits>-<16 hexadecimal digits>": nothing else is ours to remove.
bool IsJobName(absl::string_view name) {
  if (!absl::StartsWith(name, kPrefix)) return false;
  name.remove_prefix(sizeof(kPrefix) - 1);
  const size_t dash = name.find('-');
  if (dash == 0 || dash == absl::string_view::npos) return false;
  for (const char c : name.substr(0, dash)) {
    if (!std::isdigit(static_cast<unsigned char>(c))) return false;
  }
  const absl::string_view random = name.substr(dash + 1);
  for (const char c : random) {
    if (!std::isxdigit(static_cast<unsigned char>(c))) return false;
  }
  return random.size() == 16;
}

// The lock goes last: while it is there and held, nobody else is in here.
int RemoveContents(int path_fd, int directory_fd, const std::string& name) {
  int error = 0;
  for (const char* file : {kStateName, kLockName}) {
    if (unlinkat(directory_fd, file, 0) != 0 && errno != ENOENT && error == 0) {
      error = errno;
    }
  }
  if (unlinkat(path_fd, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT &&
      error == 0) {
    error = errno;
  }
  return error;
}

// One that has no lock file died while it was made, as that happens under the
// lock that we hold. What cannot be opened or removed is left alone.
void ReclaimIfStale(int path_fd, const std::string& name) {
  const int directory = openat(path_fd, name.c_str(),
                               O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (directory < 0) return;
  const int lock =
      openat(directory, kLockName, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (lock >= 0 ? TryLock(lock) : errno == ENOENT) {
    RemoveContents(path_fd, directory, name);
  }
  if (lock >= 0) close(lock);
  close(directory);
}

void ReclaimStale(int path_fd) {
  // A descriptor of its own: the listing owns it and moves its position.
  const int listing_fd =
      openat(path_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* listing = listing_fd < 0 ? nullptr : fdopendir(listing_fd);
  if (listing == nullptr) {
    if (listing_fd >= 0) close(listing_fd);
    return;
  }
  std::vector<std::string> names;
  while (const dirent* entry = readdir(listing)) {
    if (IsJobName(entry->d_name)) names.emplace_back(entry->d_name);
  }
  closedir(listing);
  for (const std::string& name : names) ReclaimIfStale(path_fd, name);
}

std::string NewJobName() {
  uint64_t random = 0;
  if (getrandom(&random, sizeof(random), 0) != sizeof(random)) {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    random = static_cast<uint64_t>(now.tv_sec) * 1'000'000'007u +
             static_cast<uint64_t>(now.tv_nsec);
  }
  return absl::StrCat(kPrefix, getpid(), "-",
                      absl::Hex(random, absl::kZeroPad16));
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobDirectory>> JobDirectory::Create(
    const std::string& path) {
  std::unique_ptr<JobDirectory> job(new JobDirectory);
  job->path_ = path;
  job->owner_pid_ = getpid();
  job->path_fd_ = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (job->path_fd_ < 0) {
    return ErrnoError(Path(path), "cannot open directory", errno, path);
  }
  PathLock path_lock(job->path_fd_);
  TERRACE_RETURN_IF_ERROR(path_lock.Acquire(path));
  ReclaimStale(job->path_fd_);
  TERRACE_RETURN_IF_ERROR(job->MakeIn(job->path_fd_));
  return job;
}

absl::Status JobDirectory::MakeIn(int path_fd) {
  int result = -1;
  for (int i = 0; i < 8 && result != 0; ++i) {
    name_ = NewJobName();
    result = mkdirat(path_fd, name_.c_str(), 0700);
    if (result != 0 && errno != EEXIST) break;
  }
  if (result != 0) {
    return ErrnoError(Path(path_), "cannot make a directory", errno, path_);
  }
  made_ = true;
  fd_ = openat(path_fd, name_.c_str(),
               O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd_ < 0) {
    const int error = errno;
    unlinkat(path_fd, name_.c_str(), AT_REMOVEDIR);
    made_ = false;
    return ErrnoError(Path(path_), "cannot open what it made", error, path_);
  }
  lock_fd_ =
      openat(fd_, kLockName, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (lock_fd_ < 0) {
    return ErrnoError(Path(path_), "cannot make a lock file", errno, path_);
  }
  if (!TryLock(lock_fd_)) {
    const int error = errno;
    return WithIoFault(
        absl::UnavailableError(absl::StrCat(
            Path(path_), ": its files cannot be locked: ", ErrnoName(error))),
        {.error = error, .path = path_});
  }
  return absl::OkStatus();
}

JobDirectory::~JobDirectory() {
  if (made_ && IsOwner()) RemoveContents(path_fd_, fd_, name_);
  CloseAll();
}

std::string JobDirectory::state_file() const {
  return absl::StrCat(path_, absl::EndsWith(path_, "/") ? "" : "/", name_, "/",
                      kStateName);
}

absl::Status JobDirectory::Remove() {
  if (!made_ || !IsOwner()) return absl::OkStatus();
  made_ = false;
  const int error = RemoveContents(path_fd_, fd_, name_);
  if (error == 0) return absl::OkStatus();
  return ErrnoError(Path(path_), absl::StrCat("cannot remove ", name_), error,
                    path_);
}

bool JobDirectory::IsOwner() const { return getpid() == owner_pid_; }

void JobDirectory::CloseAll() {
  for (const int fd : {lock_fd_, fd_, path_fd_}) {
    if (fd >= 0) close(fd);
  }
}

}  // namespace terrace
