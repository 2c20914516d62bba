// A regular file that is read in parts. It is open as long as it lives, or, as
// one of more files than a process has descriptors for, only while it is read.
// Move-only; reads are thread-safe.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/file.h"

namespace terrace {

class SourceFile {
 public:
  // How many files of a set stay open: a quarter of what the process may have,
  // 256 at the most.
  static size_t MostOpen();

  // `name` in the directory, which outlives this where it does not stay open.
  static absl::StatusOr<SourceFile> Open(const File& directory,
                                         const std::string& name,
                                         bool stays_open);
  static absl::StatusOr<SourceFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t size_bytes() const { return size_bytes_; }

  // As File's. Unavailable: it did not stay open, and is another file now or
  // gone, as a later save leaves it.
  absl::Status Read(int64_t offset, absl::Span<std::byte> bytes) const;
  // Advice.
  void DropCache(int64_t offset = 0, int64_t size_bytes = 0) const;

 private:
  SourceFile(const File* directory, std::string name, File file)
      : directory_(directory),
        name_(std::move(name)),
        path_(file.path()),
        open_(std::move(file)) {}
  absl::Status Look();
  absl::StatusOr<File> OpenAgain() const;

  const File* directory_;  // null: it stays open
  std::string name_;
  std::string path_;
  int64_t size_bytes_ = 0;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::optional<File> open_;
};

}  // namespace terrace
