// A file of a checkpoint: plain descriptors, whole transfers or an error with
// path, offset, bytes and errno. Move-only; one thread at a time. In a forked
// child what its parent opened is closed, and its calls are Cancelled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/io_fault.h"
#include "base/process.h"

namespace terrace {

// DataLoss: "<path>: <what>", with the path, and the offset where it is known,
// in its payload.
absl::Status Damaged(const std::string& path, absl::string_view what,
                     int64_t offset = IoFault::kNoOffset);

class File {
 public:
  // `name` in the open directory `directory_fd`, whose path is for messages.
  static absl::StatusOr<File> Create(int directory_fd,
                                     const std::string& directory,
                                     const std::string& name);
  // InvalidArgument: it is no regular file. A pipe is not waited for.
  static absl::StatusOr<File> OpenToRead(const File& directory,
                                         const std::string& name);
  static absl::StatusOr<File> OpenToRead(const std::string& path);
  // The directory itself, to list, lock and flush it.
  static absl::StatusOr<File> OpenDirectory(const std::string& path);
  // The same directory, for another owner.
  static absl::StatusOr<File> OpenDirectory(const File& directory);

  int fd() const { return own_.get(); }
  const std::string& path() const { return path_; }

  // Takes the space now, so that a full disk is known before the writing.
  absl::Status Reserve(int64_t size_bytes);
  absl::Status Write(int64_t offset, absl::Span<const std::byte> bytes);
  // DataLoss: the file ends before.
  absl::Status Read(int64_t offset, absl::Span<std::byte> bytes) const;
  absl::StatusOr<int64_t> SizeBytes() const;
  // Until it is on the device.
  absl::Status Flush() const;
  // Bytes from `offset` on (0 of them: all) need not stay in the page cache;
  // those that were not flushed do. Advice, which a file system may ignore.
  void DropCache(int64_t offset = 0, int64_t size_bytes = 0) const;

 private:
  File(OwnDescriptor own, std::string path)
      : own_(std::move(own)), path_(std::move(path)) {}
  static absl::StatusOr<File> Opened(OwnDescriptor own, std::string path);
  static absl::StatusOr<File> OpenedRegular(OwnDescriptor own,
                                            std::string path);
  absl::Status Failed(const std::string& what, int error) const;
  absl::Status AtOffset(const char* verb, int64_t offset, size_t bytes,
                        int error) const;

  OwnDescriptor own_;
  std::string path_;
};

}  // namespace terrace
