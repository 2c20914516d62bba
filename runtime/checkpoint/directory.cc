#include "runtime/checkpoint/directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/directory_names.h"
#include "runtime/base/io_fault.h"
#include "runtime/base/status_macros.h"
#include "runtime/checkpoint/file_names.h"
#include "runtime/checkpoint/files.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

constexpr char kNewManifestName[] = "checkpoint.json.new";
constexpr int kDirectoryMode = 0777;

// The directory that holds `path`.
std::string ParentOf(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), kDirectoryMode) != 0) {
    // What is there already may be no directory, which opening it tells.
    if (errno == EEXIST) return absl::OkStatus();
    return ErrnoError(path, "cannot be made", errno);
  }
  TERRACE_ASSIGN_OR_RETURN(File parent, File::OpenDirectory(ParentOf(path)));
  return parent.Flush();
}

}  // namespace

absl::StatusOr<std::string> ReadManifestText(const File& directory,
                                             const std::string& name) {
  TERRACE_ASSIGN_OR_RETURN(
      const File file,
      File::OpenToRead(directory.fd(), directory.path(), name));
  TERRACE_ASSIGN_OR_RETURN(const int64_t size_bytes, file.SizeBytes());
  if (size_bytes > kLongestManifest) {
    return Damaged(file.path(), absl::StrCat("has ", size_bytes,
                                             " bytes, more than it can"));
  }
  std::string text(static_cast<size_t>(size_bytes), '\0');
  TERRACE_RETURN_IF_ERROR(
      file.Read(0, {reinterpret_cast<std::byte*>(text.data()), text.size()}));
  return text;
}

absl::StatusOr<std::unique_ptr<CheckpointWriterDirectory>>
CheckpointWriterDirectory::Open(const std::string& path) {
  TERRACE_RETURN_IF_ERROR(MakeDirectory(path));
  TERRACE_ASSIGN_OR_RETURN(File file, File::OpenDirectory(path));
  std::unique_ptr<CheckpointWriterDirectory> directory(
      new CheckpointWriterDirectory(std::move(file)));
  TERRACE_RETURN_IF_ERROR(directory->Lock());
  return directory;
}

CheckpointWriterDirectory::~CheckpointWriterDirectory() {
  if (locked_) flock(fd(), LOCK_UN);
}

absl::Status CheckpointWriterDirectory::Lock() {
  int error = 0;
  do {
    error = flock(fd(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  } while (error == EINTR);
  locked_ = error == 0;
  if (locked_) return absl::OkStatus();
  if (error == EWOULDBLOCK) {
    return WithIoFault(
        absl::UnavailableError(absl::StrCat(
            path(), ": another program is saving a checkpoint there")),
        {.error = error, .path = path()});
  }
  return ErrnoError(path(), "cannot be locked", error);
}

absl::Status CheckpointWriterDirectory::WriteManifest(const std::string& text) {
  Remove(kNewManifestName);
  TERRACE_ASSIGN_OR_RETURN(File file,
                           File::Create(fd(), path(), kNewManifestName));
  TERRACE_RETURN_IF_ERROR(file.Write(
      0, {reinterpret_cast<const std::byte*>(text.data()), text.size()}));
  TERRACE_RETURN_IF_ERROR(file.Flush());
  // The names of all new files, before one of them is made use of.
  return file_.Flush();
}

absl::Status CheckpointWriterDirectory::CheckOpens() const {
  TERRACE_ASSIGN_OR_RETURN(const std::string text,
                           ReadManifestText(file_, kNewManifestName));
  return CheckpointFiles::Open(file_, text, kNewManifestName).status();
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
  absl::Status status = WriteManifest(*text);
  if (status.ok()) {
    const absl::Status opens = CheckOpens();
    if (!opens.ok()) {
      status = Reworded(
          opens, absl::StrCat("the checkpoint that was written cannot be "
                              "opened, and was not put in place: ",
                              opens.message()));
    }
  }
  if (status.ok() &&
      renameat(fd(), kNewManifestName, fd(), kManifestName) != 0) {
    status = ErrnoError(absl::StrCat(path(), "/", kNewManifestName),
                        "cannot be renamed", errno);
  }
  if (!status.ok()) Remove(kNewManifestName);
  return status;
}

void CheckpointWriterDirectory::RemoveLeftovers() {
  const absl::StatusOr<std::string> text = ReadManifestText(file_);
  std::vector<std::string> kept;
  if (text.ok()) {
    const auto manifest = ParseManifest(*text, path());
    if (!manifest.ok()) return;
    for (const ManifestFile* file : manifest->files()) {
      kept.push_back(file->name);
    }
  } else if (!absl::IsNotFound(text.status())) {
    return;
  }
  for (const std::string& name : NamesIn(fd())) {
    const bool ours = IsCheckpointFileName(name) || name == kNewManifestName;
    if (ours && std::find(kept.begin(), kept.end(), name) == kept.end()) {
      Remove(name);
    }
  }
}

void CheckpointWriterDirectory::RemoveUnpublished(
    const std::vector<std::string>& names) {
  const absl::StatusOr<std::string> text = ReadManifestText(file_);
  if (!text.ok() && !absl::IsNotFound(text.status())) return;
  for (const std::string& name : names) {
    if (IsCheckpointFileName(name) &&
        !(text.ok() && absl::StrContains(*text, name))) {
      Remove(name);
    }
  }
}

void CheckpointWriterDirectory::Remove(const std::string& name) {
  unlinkat(fd(), name.c_str(), 0);
}

}  // namespace terrace
