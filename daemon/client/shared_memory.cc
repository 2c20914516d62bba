#include "daemon/client/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tiers/system_error.h"

// Linux 5.14; absent from older C libraries' headers.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace terrace {

absl::StatusOr<SharedMemory> SharedMemory::Map(const OwnDescriptor& file,
                                               int64_t file_bytes,
                                               int64_t used_bytes) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  struct stat found = {};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  const bool is_whole = fstat(file.get(), &found) == 0 &&
                        found.st_size == file_bytes && seals >= 0 &&
                        (seals & kSeals) == kSeals;
  if (!is_whole) {
    return absl::InvalidArgumentError(
        absl::StrCat("the daemon's memory of ", file_bytes, " bytes has ",
                     found.st_size, ", or its size may change"));
  }
  const auto size = static_cast<size_t>(file_bytes);
  void* const mapped =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) {
    return ErrnoError("the daemon's memory",
                      absl::StrCat("cannot map ", file_bytes, " bytes"), errno);
  }
  SharedMemory memory(absl::MakeSpan(static_cast<std::byte*>(mapped), size));
  if (madvise(mapped, size, MADV_DONTFORK) != 0) {
    return ErrnoError("the daemon's memory", "cannot be kept from children",
                      errno);
  }
  // The pages are there: only this process's tables are filled, as far as the
  // kernel does so.
  madvise(mapped, static_cast<size_t>(used_bytes), MADV_POPULATE_WRITE);
  return memory;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})) {}

SharedMemory::~SharedMemory() {
  // A child may have something else at these addresses.
  if (bytes_.empty() || !process_.IsCurrent()) return;
  munmap(bytes_.data(), bytes_.size());
}

}  // namespace terrace
