// A nameless file for one measurement, in a known state: it is gone with its
// descriptor, however the process ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace terrace::bench {

enum class FileState : uint8_t {
  kWritten,    // allocated, and written once
  kAllocated,  // allocated, never written
  kSparse,     // a hole of its full size
  kEmpty,      // of no size: every write extends it
};
const char* NameOf(FileState state);

class ScratchFile {
 public:
  // `content` is what a written file holds, again and again; a multiple of
  // 4 MiB.
  static absl::StatusOr<std::unique_ptr<ScratchFile>> Create(
      const std::string& directory, int64_t size_bytes, FileState state,
      absl::Span<std::byte> content);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  int fd() const { return fd_; }
  bool is_direct() const { return is_direct_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  ScratchFile() = default;

  int fd_ = -1;
  bool is_direct_ = true;
  int64_t size_bytes_ = 0;
};

}  // namespace terrace::bench
