// The directory of a checkpoint, of one that saves there: how a new checkpoint
// takes the place of the old one, and when leftovers are removed. One thread at
// a time; the lock is held as long as the object lives, and given back also
// where a child was forked meanwhile.
//
// The lock is flock's of the directory, and the file `checkpoint.lock`, which
// lists what the save makes and replaces (file_list.h), and counts on every
// host that has the file system. It is taken over from a save that is surely
// dead: where flock's counts for all, or the file names this host.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/process.h"
#include "checkpoint/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/save/file_list.h"

namespace terrace {

class CheckpointWriterDirectory {
 public:
  // Makes it if need be, and locks it. Unavailable: another save is under way.
  // FailedPrecondition: `checkpoint.lock` is not a save's.
  static absl::StatusOr<std::unique_ptr<CheckpointWriterDirectory>> Open(
      const std::string& path);
  ~CheckpointWriterDirectory();
  CheckpointWriterDirectory(const CheckpointWriterDirectory&) = delete;
  CheckpointWriterDirectory& operator=(const CheckpointWriterDirectory&) =
      delete;

  const File& file() const { return file_; }
  int fd() const { return file_.fd(); }
  const std::string& path() const { return file_.path(); }

  // Lists files that are going to be made; on disk when it returns. What of
  // them no checkpoint names is removed in the end, or by the next save.
  absl::Status List(absl::Span<const std::string> files);

  // The commit: once it is OK the checkpoint is the new one, also after a power
  // loss. Before that, what was written is read and its files are opened as a
  // reader would: an error of theirs, or ResourceExhausted with sizes for a
  // checkpoint.json of more than `longest_bytes`, and the old one stays. If the
  // last flush fails, the new one is there but may not outlive a power loss:
  // then nothing of the old one is removed before a later save.
  absl::Status Publish(const Manifest& manifest,
                       int64_t longest_bytes = kLongestManifest);

  // Removes what lists name and the present checkpoint.json does not, once the
  // latter is known to be on disk: an error is a flush's, and then nothing is
  // removed as long as this lives. What cannot be removed stays, listed, until
  // the next time.
  absl::Status RemoveLeftovers();

 private:
  // Whether the last rename to checkpoint.json, whoever made it, is on disk.
  enum class Renamed : uint8_t { kUnknown, kOnDisk, kFlushFailed };

  explicit CheckpointWriterDirectory(File file);
  absl::Status Lock();
  absl::Status CheckReplaceable() const;
  absl::Status FlushName() const;
  absl::Status MakeLockFile();
  void RemoveLockFile();
  absl::Status WriteManifest(const std::string& text);
  absl::Status CheckOpens() const;
  absl::Status Replace();

  const Process process_;
  const File file_;
  const std::string new_manifest_name_;
  bool locked_ = false;
  std::optional<FileList> lock_file_;  // once it is made
  std::vector<std::string> listed_;    // in it
  Renamed renamed_ = Renamed::kUnknown;
  bool all_gone_ = true;  // of what was to be removed
};

}  // namespace terrace
