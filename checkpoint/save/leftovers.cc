#include "checkpoint/save/leftovers.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/directory_names.h"
#include "base/io_fault.h"
#include "checkpoint/file_names.h"
#include "checkpoint/manifest_file.h"
#include "checkpoint/save/file_list.h"

namespace terrace {
namespace {

bool IsThere(const File& directory, const std::string& name) {
  struct stat found = {};
  return fstatat(directory.fd(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) ==
             0 ||
         errno != ENOENT;
}

bool IsGone(const File& directory, const std::string& name) {
  return unlinkat(directory.fd(), name.c_str(), 0) == 0 || errno == ENOENT;
}

}  // namespace

Leftovers Leftovers::Find(const File& directory,
                          absl::Span<const std::string> own,
                          absl::string_view dead_lock) {
  Leftovers found(directory);
  const PresentCheckpoint present = PresentCheckpoint::Read(directory);
  const auto left_of = [&](absl::Span<const std::string> names) {
    std::vector<std::string> files;
    for (const std::string& name : names) {
      if (!present.Names(name) && IsThere(directory, name)) {
        files.push_back(name);
      }
    }
    return files;
  };
  found.files_ = left_of(own);
  found.all_known_ = present.is_known() || dead_lock.empty();
  if (!present.is_known()) return found;
  for (std::string& name : NamesIn(directory.fd())) {
    if (!IsFileListName(name) && name != dead_lock) continue;
    const auto list = FileList::Read(directory, name);
    if (!list.ok()) continue;
    found.lists_.push_back({std::move(name), left_of(list->files)});
  }
  return found;
}

bool Leftovers::Remove() const {
  bool all_gone = Remove(files_) && all_known_;
  for (const List& list : lists_) {
    // It goes last: while it is there, what it names can be found.
    const bool gone = Remove(list.files) && IsGone(*directory_, list.name);
    all_gone = all_gone && gone;
  }
  return all_gone;
}

bool Leftovers::Remove(absl::Span<const std::string> files) const {
  bool all_gone = true;
  for (const std::string& name : files) {
    all_gone = IsGone(*directory_, name) && all_gone;
  }
  return all_gone;
}

absl::Status CheckForStrays(const File& directory) {
  if (PresentCheckpoint::Read(directory).is_there()) return absl::OkStatus();
  std::set<std::string> listed;
  std::vector<std::string> strays;
  for (std::string& name : NamesIn(directory.fd())) {
    if (IsCheckpointFileName(name)) {
      strays.push_back(std::move(name));
    } else if (IsFileListName(name)) {
      const auto list = FileList::Read(directory, name);
      if (list.ok()) listed.insert(list->files.begin(), list->files.end());
    }
  }
  std::erase_if(strays,
                [&](const std::string& name) { return listed.contains(name); });
  if (strays.empty()) return absl::OkStatus();
  const std::string& first = *std::min_element(strays.begin(), strays.end());
  return WithIoFault(
      absl::FailedPreconditionError(absl::StrCat(
          directory.path(), ": has no checkpoint.json, but ", first,
          strays.size() > 1 ? absl::StrCat(" and ", strays.size() - 1, " more")
                            : "",
          " of a checkpoint, which no save lists as its own: move them away if "
          "they are wanted, remove them if not, or save to another directory")),
      {.path = directory.path()});
}

}  // namespace terrace
