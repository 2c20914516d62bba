// The file behind a disk path: how it is opened and how it gets its space.
// Thread-safe, stateless.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/process.h"

namespace terrace {

struct StateFile {
  int fd = -1;  // of an owner elsewhere
  bool direct_io = false;
  std::string direct_io_reason;     // why not, or how it was found out
  int64_t alignment = kBlockBytes;  // of memory, offset and length
};

// Makes the file `state` in the directory `directory_fd`, open for reading,
// writing and, where it works, O_DIRECT; what works is tried, not believed:
// one block is written. `name` is what errors call it. Leaves no file behind
// when it fails. `opened` gets what is to be kept open.
absl::StatusOr<StateFile> MakeStateFile(int directory_fd,
                                        const std::string& name,
                                        OwnDescriptor& opened);

// The same of a file or block device that is open already: takes O_DIRECT where
// that works, which is tried by writing `block`, kBlockBytes page-aligned
// bytes, at offset 0.
absl::StatusOr<StateFile> ChooseTransfers(int fd, const std::string& name,
                                          const void* block);

// Gives `size_bytes` of disk to the file from `offset`, its present end, on.
// ResourceExhausted: the disk, the quota or the largest file is full; the file
// is as long as before.
//
// `progress` rises by what was written, where a file system wants that.
absl::Status Preallocate(int fd, const std::string& name, int64_t offset,
                         int64_t size_bytes, std::atomic<int64_t>* progress);

}  // namespace terrace
