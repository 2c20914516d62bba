#include "tiers/disk/stale_jobs.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/directory_names.h"
#include "base/system/file_lock.h"
#include "base/system/host.h"
#include "tiers/disk/job_files.h"

namespace terrace {
namespace {

// Some 30 ms of a file system's work: growth behind a piece is not late.
constexpr int64_t kFreedAtOnce = int64_t{1} << 30;
// Hundreds of pieces' time: a process that gets no further in it is stuck.
constexpr absl::Duration kPatience = absl::Seconds(10);
constexpr absl::Duration kPause = absl::Milliseconds(10);

constexpr int kOpenDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

}  // namespace

StaleJobs::StaleJobs(int path_fd)
    : path_fd_(path_fd), locks_count_for_all_(LocksCountForAll(path_fd)) {}

StaleJobs::~StaleJobs() { Stop(); }

void StaleJobs::Stop() {
  stopped_ = true;
  Release();
}

bool StaleJobs::RemoveSome() {
  if (stopped_ || !process_.IsCurrent()) return false;
  for (int64_t bytes = 0; bytes < kFreedAtOnce;) {
    if (name_.empty() && !ClaimNext()) return false;
    ++removals_;
    const int64_t freed = Shrink();
    if (freed == 0) Remove();
    bytes += freed;
  }
  return true;
}

bool StaleJobs::MakeRoom() {
  const int64_t removals = removals_;
  const auto removes_some = [&] {
    RemoveSome();
    return removals_ != removals;
  };
  if (removes_some()) return true;
  const int64_t before = BytesOfOthers();
  if (before == 0 || stopped_ || !process_.IsCurrent()) return false;
  const timespec pause = absl::ToTimespec(kPause);
  for (absl::Duration waited; waited < kPatience; waited += kPause) {
    nanosleep(&pause, nullptr);
    // A process that was killed in it left it to this one.
    if (BytesOfOthers() != before || removes_some()) return true;
  }
  return false;
}

bool StaleJobs::MayLiveElsewhere(const std::string& name) const {
  if (locks_count_for_all_) return false;
  const std::optional<JobOwner> owner = OwnerOfJob(name);
  return owner && !(owner->host && IsKnownHere(*owner->host));
}

std::vector<std::string> StaleJobs::elsewhere() const {
  std::vector<std::string> told;
  for (const std::string& name : NamesIn(path_fd_)) {
    if (!MayLiveElsewhere(name)) continue;
    told.push_back(absl::StrCat(name, ": of ", OwnerOfJob(name)->Text()));
  }
  return told;
}

std::vector<std::string> StaleJobs::Names() const {
  std::vector<std::string> names = NamesIn(path_fd_);
  std::erase_if(names, [this](const std::string& name) {
    const bool ours = IsJobName(name) || IsStaleJobName(name);
    return !ours || left_alone_.contains(name) || MayLiveElsewhere(name);
  });
  return names;
}

bool StaleJobs::ClaimNext() {
  for (const std::string& name : Names()) {
    if (Claim(name)) return true;
  }
  return false;
}

// False: it is held, it is gone, or it cannot be had, and is left alone: a lock
// that is held is all that tells of a living process. A job that is being made
// is in the same danger, and tries again: JobDirectory.
bool StaleJobs::Claim(const std::string& name) {
  directory_ = OwnDescriptor::OpenAt(path_fd_, name, kOpenDirectory);
  const bool opened = directory_.ok();
  if (opened) {
    lock_ = OwnDescriptor::OpenAt(directory_.get(), kJobLockName,
                                  O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  }
  const bool gone = !opened && errno == ENOENT;
  const bool unlocked = opened && !lock_.ok() && errno == ENOENT;
  bool removed = false;
  if (unlocked) {
    removed =
        unlinkat(path_fd_, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT;
  }
  const bool had = lock_.ok() && TryLock(lock_.get());
  const bool others = lock_.ok() && !had && errno == EWOULDBLOCK;
  if (!had) {
    lock_.Close();
    directory_.Close();
    if (!gone && !removed && !others) left_alone_.insert(name);
    return false;
  }
  name_ = name;
  if (IsStaleJobName(name)) return true;
  const std::string stale = absl::StrCat(name, kStaleSuffix);
  if (renameat(path_fd_, name.c_str(), path_fd_, stale.c_str()) == 0) {
    name_ = stale;
  } else if (errno == ENOENT) {
    Release();  // another start removed it before its lock was ours
    return false;
  }
  return true;
}

// By a piece from the end on, so that what is left is as good as before; the
// bytes. Only a file that has no other name: under another one it is wanted.
int64_t StaleJobs::Shrink() {
  if (!state_.ok()) {
    state_ =
        OwnDescriptor::OpenAt(directory_.get(), kJobStateName,
                              O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  }
  struct stat file = {};
  if (!state_.ok() || fstat(state_.get(), &file) != 0 ||
      !S_ISREG(file.st_mode) || file.st_nlink != 1) {
    return 0;
  }
  const int64_t freed = std::min<int64_t>(file.st_size, kFreedAtOnce);
  return ftruncate(state_.get(), file.st_size - freed) == 0 ? freed : 0;
}

// The names go last: while they are there, others know that there will be
// room.
void StaleJobs::Remove() {
  state_.Close();
  if (RemoveJobFiles(path_fd_, directory_.get(), name_) != 0) {
    left_alone_.insert(name_);
  }
  Release();
}

void StaleJobs::Release() {
  // A child that was forked just now has not closed its copy yet.
  if (lock_.ok()) flock(lock_.get(), LOCK_UN);
  state_.Close();
  lock_.Close();
  directory_.Close();
  name_.clear();
}

// What is still there of what is being removed; 0: nothing is.
int64_t StaleJobs::BytesOfOthers() const {
  int64_t bytes = 0;
  for (const std::string& name : Names()) {
    if (!IsStaleJobName(name)) continue;
    struct stat file = {};
    const std::string state = absl::StrCat(name, "/", kJobStateName);
    const int result =
        fstatat(path_fd_, state.c_str(), &file, AT_SYMLINK_NOFOLLOW);
    bytes += 1 + (result == 0 ? 1 + file.st_size : 0);
  }
  return bytes;
}

}  // namespace terrace
