// The directory of a checkpoint: which names it uses, how a new checkpoint
// takes the place of the old one, and what of a killed save is removed. One
// thread at a time; the lock is held as long as the object lives, and given
// back also where a child was forked meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/checkpoint/file.h"
#include "runtime/checkpoint/manifest.h"

namespace terrace {

inline constexpr char kManifestName[] = "checkpoint.json";

// The text of a directory's checkpoint.json. NotFound; DataLoss: more than
// kLongestManifest.
absl::StatusOr<std::string> ReadManifestText(
    const File& directory, const std::string& name = kManifestName);

class CheckpointWriterDirectory {
 public:
  // Makes it if need be, and locks it. Unavailable: another save is under way.
  static absl::StatusOr<std::unique_ptr<CheckpointWriterDirectory>> Open(
      const std::string& path);
  ~CheckpointWriterDirectory();
  CheckpointWriterDirectory(const CheckpointWriterDirectory&) = delete;
  CheckpointWriterDirectory& operator=(const CheckpointWriterDirectory&) =
      delete;

  const File& file() const { return file_; }
  int fd() const { return file_.fd(); }
  const std::string& path() const { return file_.path(); }

  // The commit: once it is OK the checkpoint is the new one. Before that, what
  // was written is read and its files are opened as a reader would: an error
  // of theirs, or ResourceExhausted with sizes for a checkpoint.json of more
  // than `longest_bytes`, and the old one stays.
  absl::Status Publish(const Manifest& manifest,
                       int64_t longest_bytes = kLongestManifest);
  // What was published outlives a power loss.
  absl::Status Flush() { return file_.Flush(); }

  // Removes the files of ours that the present checkpoint.json does not name;
  // none at all if that cannot be read. What cannot be removed stays, until
  // the next time.
  void RemoveLeftovers();
  // Removes those of these files of ours that the present checkpoint.json does
  // not mention, also if it is damaged.
  void RemoveUnpublished(const std::vector<std::string>& names);
  void Remove(const std::string& name);

 private:
  explicit CheckpointWriterDirectory(File file) : file_(std::move(file)) {}
  absl::Status Lock();
  absl::Status WriteManifest(const std::string& text);
  absl::Status CheckOpens() const;

  File file_;
  bool locked_ = false;
};

}  // namespace terrace
