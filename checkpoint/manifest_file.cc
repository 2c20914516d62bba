#include "checkpoint/manifest_file.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/file_names.h"
#include "checkpoint/manifest.h"
#include "checkpoint/memory.h"

namespace terrace {

absl::StatusOr<std::string> ReadManifestText(const File& directory,
                                             const std::string& name) {
  TERRACE_ASSIGN_OR_RETURN(const File file, File::OpenToRead(directory, name));
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

PresentCheckpoint PresentCheckpoint::Read(const File& directory) {
  PresentCheckpoint present;
  absl::StatusOr<std::string> text = WithinMemory(
      directory.path(), [&] { return ReadManifestText(directory); });
  if (!text.ok()) {
    present.is_there_ = !absl::IsNotFound(text.status());
    present.is_known_ = !present.is_there_;
    return present;
  }
  const auto manifest = WithinMemory(
      directory.path(), [&] { return ParseManifest(*text, directory.path()); });
  present.is_known_ = manifest.ok();
  if (!manifest.ok()) {
    present.damaged_ = *std::move(text);
    return present;
  }
  for (const ManifestFile* file : manifest->files()) {
    // Another name is nothing that a save could have made.
    if (IsCheckpointFileName(file->name)) present.files_.insert(file->name);
  }
  return present;
}

bool PresentCheckpoint::Names(const std::string& file) const {
  if (is_known_) return files_.contains(file);
  return !damaged_ || absl::StrContains(*damaged_, file);
}

}  // namespace terrace
