#include "daemon/client/shared_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/system/memory_file.h"
#include "tiers/system_error.h"

// Linux 5.14; absent from older C libraries' headers.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace terrace {

uint64_t FileNumberOf(const OwnDescriptor& file) {
  struct stat found = {};
  return fstat(file.get(), &found) == 0 ? found.st_ino : 0;
}

absl::StatusOr<SharedMemory> SharedMemory::Map(const OwnDescriptor& file,
                                               int64_t file_bytes,
                                               int64_t used_bytes) {
  if (!IsMemoryFile(file, file_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the daemon's memory has another size than ", file_bytes,
                     " bytes, or it may change"));
  }
  std::byte* const mapped = MapMemoryFile(file, file_bytes);
  if (mapped == nullptr) {
    return ErrnoError("the daemon's memory",
                      absl::StrCat("cannot map ", file_bytes, " bytes"), errno);
  }
  SharedMemory memory(absl::MakeSpan(mapped, static_cast<size_t>(file_bytes)));
  memory.file_number_ = FileNumberOf(file);
  // The pages are there: only this process's tables are filled, as far as the
  // kernel does so.
  madvise(mapped, static_cast<size_t>(used_bytes), MADV_POPULATE_WRITE);
  return memory;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})),
      file_number_(other.file_number_) {}

SharedMemory::~SharedMemory() {
  // A child may have something else at these addresses.
  if (bytes_.empty() || !process_.IsCurrent()) return;
  munmap(bytes_.data(), bytes_.size());
}

}  // namespace terrace
