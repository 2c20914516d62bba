#include "base/system/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace terrace {

OwnDescriptor MakeMemoryFile(const char* name, int64_t size_bytes) {
  OwnDescriptor file;
  {
    const ForkPause pause;
    file =
        OwnDescriptor::Of(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  }
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const bool is_made = file.ok() &&
                       fchmod(file.get(), S_IRUSR | S_IWUSR) == 0 &&
                       ftruncate(file.get(), size_bytes) == 0 &&
                       fcntl(file.get(), F_ADD_SEALS, kSeals) == 0;
  return is_made ? std::move(file) : OwnDescriptor();
}

bool IsMemoryFile(const OwnDescriptor& file, int64_t size_bytes) {
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  struct stat found = {};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  return seals >= 0 && (seals & kNeeded) == kNeeded &&
         fstat(file.get(), &found) == 0 && found.st_size == size_bytes;
}

std::byte* MapMemoryFile(const OwnDescriptor& file, int64_t size_bytes) {
  const auto size = static_cast<size_t>(size_bytes);
  void* const mapped =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (madvise(mapped, size, MADV_DONTFORK) == 0) {
    return static_cast<std::byte*>(mapped);
  }
  const int error = errno;
  munmap(mapped, size);
  errno = error;
  return nullptr;
}

}  // namespace terrace
