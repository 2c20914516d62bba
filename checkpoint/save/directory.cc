#include "checkpoint/save/directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "base/system/file_lock.h"
#include "base/system/host.h"
#include "checkpoint/file_names.h"
#include "checkpoint/files.h"
#include "checkpoint/manifest_file.h"
#include "checkpoint/save/leftovers.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

constexpr char kLockName[] = "checkpoint.lock";
constexpr int kDirectoryMode = 0777;
// A child of a killed save has a copy of its lock until it runs, which closes
// it; nothing wakes who waits for a lock of another process.
constexpr absl::Duration kPatience = absl::Milliseconds(500);

absl::Status IsBeingSavedTo(const std::string& path, int error) {
  return WithIoFault(
      absl::UnavailableError(
          absl::StrCat(path, ": another program is saving a checkpoint there")),
      {.error = error, .path = path});
}

absl::Status MayBeSavedTo(const std::string& path, const std::string& owner) {
  return WithIoFault(
      absl::UnavailableError(absl::StrCat(
          path, "/", kLockName, ": ", owner,
          " may be saving a checkpoint there: several hosts may have this file "
          "system, and it is not known to be dead. Remove the file if it is")),
      {.error = EWOULDBLOCK, .path = path});
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointWriterDirectory>>
CheckpointWriterDirectory::Open(const std::string& path) {
  // What is there already may be no directory, which opening it tells.
  if (mkdir(path.c_str(), kDirectoryMode) != 0 && errno != EEXIST) {
    return ErrnoError(path, "cannot be made", errno);
  }
  TERRACE_ASSIGN_OR_RETURN(File file, File::OpenDirectory(path));
  std::unique_ptr<CheckpointWriterDirectory> directory(
      new CheckpointWriterDirectory(std::move(file)));
  TERRACE_RETURN_IF_ERROR(directory->Lock());
  TERRACE_RETURN_IF_ERROR(directory->CheckReplaceable());
  TERRACE_RETURN_IF_ERROR(directory->FlushName());
  return directory;
}

CheckpointWriterDirectory::CheckpointWriterDirectory(File file)
    : file_(std::move(file)), new_manifest_name_(NewManifestName()) {}

CheckpointWriterDirectory::~CheckpointWriterDirectory() {
  if (!process_.IsCurrent()) return;  // all of it is the parent's
  if (lock_file_) {
    RemoveLeftovers().IgnoreError();
    RemoveLockFile();
  }
  if (locked_) flock(fd(), LOCK_UN);
}

absl::Status CheckpointWriterDirectory::Lock() {
  locked_ = LockWithin(fd(), kPatience);
  if (locked_) return MakeLockFile();
  const int error = errno;
  if (error == EWOULDBLOCK) return IsBeingSavedTo(path(), error);
  return ErrnoError(path(), "cannot be locked", error);
}

// Found out before gigabytes are written, rather than by the rename.
absl::Status CheckpointWriterDirectory::CheckReplaceable() const {
  struct stat found = {};
  if (fstatat(fd(), kManifestName, &found, AT_SYMLINK_NOFOLLOW) != 0 ||
      !S_ISDIR(found.st_mode)) {
    return absl::OkStatus();
  }
  return ErrnoError(absl::StrCat(path(), "/", kManifestName),
                    "cannot be replaced", EISDIR);
}

// Whoever made it may have been killed before he did. One that has a checkpoint
// was flushed.
absl::Status CheckpointWriterDirectory::FlushName() const {
  if (PresentCheckpoint::Read(file_).is_there()) return absl::OkStatus();
  const auto parent = File::OpenDirectory(absl::StrCat(path(), "/.."));
  // Of one that others made, and that may not be read.
  if (absl::IsPermissionDenied(parent.status())) return absl::OkStatus();
  TERRACE_RETURN_IF_ERROR(parent.status());
  return parent->Flush();
}

absl::Status CheckpointWriterDirectory::MakeLockFile() {
  const absl::StatusOr<FileList::Listed> left =
      FileList::Read(file_, kLockName);
  if (left.ok()) {
    // Its save held flock's lock as well, which may count on one host only.
    if (!LocksCountForAll(fd()) && !(left->host && IsKnownHere(*left->host))) {
      return MayBeSavedTo(path(), left->Owner());
    }
    // It was killed. Its lock goes after what that lists, which may have left
    // no room for another.
    TERRACE_RETURN_IF_ERROR(RemoveLeftovers());
    RemoveLockFile();
  } else if (!absl::IsNotFound(left.status())) {
    return left.status();
  }
  listed_ = {new_manifest_name_};
  auto made = FileList::Create(file_, kLockName, listed_);
  if (IoFaultOf(made.status()).error == EEXIST) {
    return IsBeingSavedTo(path(), EEXIST);
  }
  TERRACE_RETURN_IF_ERROR(made.status());
  lock_file_ = *std::move(made);
  return absl::OkStatus();
}

// What it lists and is still there is for the next save to find.
void CheckpointWriterDirectory::RemoveLockFile() {
  if (all_gone_ && unlinkat(fd(), kLockName, 0) == 0) return;
  static_cast<void>(renameat(fd(), kLockName, fd(), NewFileListName().c_str()));
}

absl::Status CheckpointWriterDirectory::List(
    absl::Span<const std::string> files) {
  TERRACE_RETURN_IF_ERROR(lock_file_->Add(files));
  listed_.insert(listed_.end(), files.begin(), files.end());
  return absl::OkStatus();
}

absl::Status CheckpointWriterDirectory::WriteManifest(const std::string& text) {
  TERRACE_ASSIGN_OR_RETURN(File file,
                           File::Create(fd(), path(), new_manifest_name_));
  TERRACE_RETURN_IF_ERROR(file.Write(
      0, {reinterpret_cast<const std::byte*>(text.data()), text.size()}));
  TERRACE_RETURN_IF_ERROR(file.Flush());
  // The names of all new files, before one of them is made use of.
  return file_.Flush();
}

absl::Status CheckpointWriterDirectory::CheckOpens() const {
  TERRACE_ASSIGN_OR_RETURN(const std::string text,
                           ReadManifestText(file_, new_manifest_name_));
  // With as few descriptors as the program may have left.
  return CheckpointFiles::Open(file_, text, new_manifest_name_,
                               /*most_open=*/0)
      .status();
}

absl::Status CheckpointWriterDirectory::Replace() {
  // An error of a network file system's may come after the rename.
  renamed_ = Renamed::kUnknown;
  if (renameat(fd(), new_manifest_name_.c_str(), fd(), kManifestName) != 0) {
    return ErrnoError(absl::StrCat(path(), "/", new_manifest_name_),
                      "cannot be renamed", errno);
  }
  const absl::Status flushed = file_.Flush();
  renamed_ = flushed.ok() ? Renamed::kOnDisk : Renamed::kFlushFailed;
  if (flushed.ok()) return flushed;
  return Reworded(
      flushed,
      absl::StrCat(flushed.message(),
                   "; the new checkpoint is in place, but may not outlive a "
                   "power loss: the files of the old one stay until a later "
                   "save"));
}

absl::Status CheckpointWriterDirectory::Publish(const Manifest& manifest,
                                                int64_t longest_bytes) {
  const absl::StatusOr<std::string> text =
      ManifestText(manifest, longest_bytes);
  if (!text.ok()) {
    return WithIoFault(
        Reworded(text.status(),
                 absl::StrCat(path(), ": ", text.status().message())),
        {.path = absl::StrCat(path(), "/", kManifestName)});
  }
  const std::set<std::string> old = PresentCheckpoint::Read(file_).files();
  TERRACE_RETURN_IF_ERROR(
      List(std::vector<std::string>(old.begin(), old.end())));
  TERRACE_RETURN_IF_ERROR(WriteManifest(*text));
  if (const absl::Status opens = CheckOpens(); !opens.ok()) {
    return Reworded(opens,
                    absl::StrCat("the checkpoint that was written cannot be "
                                 "opened, and was not put in place: ",
                                 opens.message()));
  }
  return Replace();
}

absl::Status CheckpointWriterDirectory::RemoveLeftovers() {
  all_gone_ = false;
  if (renamed_ == Renamed::kFlushFailed) return absl::OkStatus();
  // Before this has a lock file, one that is there is a dead save's.
  const Leftovers left =
      Leftovers::Find(file_, listed_, lock_file_ ? "" : kLockName);
  if (renamed_ == Renamed::kUnknown && !left.empty()) {
    const absl::Status flushed = file_.Flush();
    renamed_ = flushed.ok() ? Renamed::kOnDisk : Renamed::kFlushFailed;
    TERRACE_RETURN_IF_ERROR(flushed);
  }
  all_gone_ = left.Remove();
  return absl::OkStatus();
}

}  // namespace terrace
