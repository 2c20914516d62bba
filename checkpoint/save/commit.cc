#include "checkpoint/save/commit.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "checkpoint/file_names.h"
#include "checkpoint/manifest.h"
#include "checkpoint/memory.h"
#include "checkpoint/save/directory.h"
#include "checkpoint/save/leftovers.h"
#include "checkpoint/values.h"
#include "terrace/checkpoint.h"

namespace terrace {
namespace {

// Parts become one; `path` is the directory's, for messages.
class Merger {
 public:
  // `begun` has the values.
  Merger(std::string path, Manifest begun)
      : path_(std::move(path)), merged_(std::move(begun)) {}

  absl::Status Add(Manifest part);
  absl::StatusOr<Manifest> Finish();

 private:
  absl::Status Bad(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(
        path_, ": these are not the parts of one checkpoint: ", what));
  }

  const std::string path_;
  Manifest merged_;
};

absl::Status Merger::Add(Manifest part) {
  if (part.parameters) {
    if (merged_.parameters) return Bad("two have parameters");
    merged_.parameters = std::move(part.parameters);
    merged_.elsewhere = std::move(part.elsewhere);
  }
  for (ManifestFile& file : part.state) {
    merged_.state.push_back(std::move(file));
  }
  merged_.step = std::max(merged_.step, part.step);
  for (const auto& [name, steps] : part.parameter_steps) {
    if (!merged_.parameter_steps.emplace(name, steps).second) {
      return Bad(absl::StrCat("two have the state of '", name, "'"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Manifest> Merger::Finish() {
  if (!merged_.parameters) return Bad("none has parameters");
  for (const auto& [name, steps] : merged_.parameter_steps) {
    if (merged_.parameters->checksums.count(name) == 0) {
      return Bad(absl::StrCat("there is state of '", name,
                              "', but no such parameter"));
    }
  }
  for (const std::string& name : merged_.elsewhere) {
    if (merged_.parameter_steps.count(name) == 0) {
      return Bad(absl::StrCat("none has the state of '", name, "'"));
    }
  }
  merged_.elsewhere.clear();
  // All of them may be without elements.
  if (merged_.state.empty()) merged_.parameter_steps.clear();
  return std::move(merged_);
}

class DirectoryCommit final : public CheckpointCommit {
 public:
  // `begun` has the values, without the file of those that lie in one.
  DirectoryCommit(std::unique_ptr<CheckpointWriterDirectory> directory,
                  Manifest begun)
      : directory_(std::move(directory)), begun_(std::move(begun)) {}

  absl::Status WriteValues(const CheckpointValues& values);
  absl::StatusOr<int64_t> Commit(absl::Span<const std::string> parts) override;

 private:
  absl::Status CheckFile(const ManifestFile& file) const;
  absl::StatusOr<int64_t> CommitTexts(absl::Span<const std::string> parts);
  absl::StatusOr<int64_t> CommitParts(std::vector<Manifest> parts);

  const Process process_;
  const std::unique_ptr<CheckpointWriterDirectory> directory_;
  Manifest begun_;
};

absl::Status DirectoryCommit::WriteValues(const CheckpointValues& values) {
  if (begun_.filed_values.empty()) return absl::OkStatus();
  const std::string name = NewCheckpointFileName("values");
  TERRACE_RETURN_IF_ERROR(directory_->List({name}));
  TERRACE_ASSIGN_OR_RETURN(
      begun_.values_file,
      WriteFiledValues(directory_->file(), name, values, begun_));
  return absl::OkStatus();
}

// That the part was written to this directory, and not to one of that name on
// another machine.
absl::Status DirectoryCommit::CheckFile(const ManifestFile& file) const {
  struct stat found {};
  const bool is_there =
      IsCheckpointFileName(file.name) &&
      fstatat(directory_->fd(), file.name.c_str(), &found, 0) == 0;
  if (is_there && found.st_size == file.size_bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      directory_->path(), ": a part of the checkpoint, ", file.name, " of ",
      file.size_bytes, " bytes, is not there",
      is_there ? absl::StrCat(" whole but ", found.st_size, " bytes of it")
               : "",
      ": all ranks must save to one directory that all of them see"));
}

absl::StatusOr<int64_t> DirectoryCommit::CommitParts(
    std::vector<Manifest> parts) {
  Merger merger(directory_->path(), begun_);
  for (Manifest& part : parts) {
    TERRACE_RETURN_IF_ERROR(merger.Add(std::move(part)));
  }
  TERRACE_ASSIGN_OR_RETURN(const Manifest manifest, merger.Finish());
  TERRACE_RETURN_IF_ERROR(CheckFile(*manifest.parameters));
  for (const ManifestFile& file : manifest.state) {
    TERRACE_RETURN_IF_ERROR(CheckFile(file));
  }
  TERRACE_RETURN_IF_ERROR(directory_->Publish(manifest));
  return manifest.size_bytes();
}

absl::StatusOr<int64_t> DirectoryCommit::Commit(
    absl::Span<const std::string> parts) {
  if (!process_.IsCurrent()) {
    return absl::CancelledError(
        absl::StrCat(directory_->path(), ": the save is of process ",
                     process_.id(), "; a forked child cannot commit it"));
  }
  absl::StatusOr<int64_t> size_bytes =
      WithinMemory(directory_->path(), [&] { return CommitTexts(parts); });
  // The old one's files or the parts'. What cannot be flushed stays listed.
  directory_->RemoveLeftovers().IgnoreError();
  return size_bytes;
}

absl::StatusOr<int64_t> DirectoryCommit::CommitTexts(
    absl::Span<const std::string> parts) {
  std::vector<Manifest> manifests;
  absl::Status status;
  for (const std::string& text : parts) {
    auto part = ParseManifest(
        text, absl::StrCat(directory_->path(), ": part ", &text - &parts[0],
                           " of ", parts.size()));
    status.Update(part.status());
    if (part.ok()) manifests.push_back(*std::move(part));
  }
  if (!status.ok()) return status;
  return CommitParts(std::move(manifests));
}

absl::StatusOr<std::unique_ptr<CheckpointWriterDirectory>> OpenClean(
    const std::string& path) {
  TERRACE_ASSIGN_OR_RETURN(auto directory,
                           CheckpointWriterDirectory::Open(path));
  TERRACE_RETURN_IF_ERROR(directory->RemoveLeftovers());
  TERRACE_RETURN_IF_ERROR(CheckForStrays(directory->file()));
  return directory;
}

absl::StatusOr<std::unique_ptr<CheckpointCommit>> Begin(
    const std::string& directory, const CheckpointValues& values) {
  Manifest only_values;
  TERRACE_RETURN_IF_ERROR(PlaceValues(values, &only_values));
  // Found out before gigabytes are written, rather than after.
  TERRACE_RETURN_IF_ERROR(ManifestText(only_values).status());
  TERRACE_ASSIGN_OR_RETURN(auto opened, OpenClean(directory));
  auto commit = std::make_unique<DirectoryCommit>(std::move(opened),
                                                  std::move(only_values));
  TERRACE_RETURN_IF_ERROR(commit->WriteValues(values));
  return commit;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointCommit>> BeginCommit(
    const std::string& directory, const CheckpointValues& values) {
  return WithinMemory(directory, [&] { return Begin(directory, values); });
}

absl::StatusOr<std::unique_ptr<CheckpointCommit>> CheckpointCommit::Begin(
    const std::string& directory, CheckpointValues values) {
  return BeginCommit(directory, values);
}

absl::Status PrepareCheckpointDirectory(const std::string& directory) {
  // Its lock file is one that can be written there.
  return OpenClean(directory).status();
}

}  // namespace terrace
