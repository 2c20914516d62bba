#include "daemon/wire/ring/ring_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tiers/system_error.h"

// Linux 5.14; absent from older C libraries' headers.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace terrace {
namespace {

constexpr size_t kWordsBytes = 4096;
static_assert(sizeof(RingWords) <= kWordsBytes);

absl::Status NoFile(int error) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "no memory file for the rings of a connection: ", ErrnoName(error)));
}

RingView ViewAt(std::byte* begin) {
  return {reinterpret_cast<RingWords*>(begin), begin + kWordsBytes};
}

}  // namespace

Rings Rings::In(absl::Span<std::byte> file) {
  return {ViewAt(file.data()), ViewAt(file.data() + kWordsBytes + kRingBytes)};
}

absl::StatusOr<RingFile> RingFile::Make() {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  constexpr auto kSize = static_cast<size_t>(kRingFileBytes);
  OwnDescriptor descriptor;
  {
    const ForkPause pause;
    descriptor = OwnDescriptor::Of(
        memfd_create("terrace-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  }
  RingFile made(std::move(descriptor));
  const int fd = made.file_.get();
  void* mapped = MAP_FAILED;
  const bool is_made = fd >= 0 && fchmod(fd, S_IRUSR | S_IWUSR) == 0 &&
                       ftruncate(fd, kRingFileBytes) == 0 &&
                       fcntl(fd, F_ADD_SEALS, kSeals) == 0 &&
                       (mapped = mmap(nullptr, kSize, PROT_READ | PROT_WRITE,
                                      MAP_SHARED, fd, 0)) != MAP_FAILED;
  if (!is_made) return NoFile(errno);
  made.bytes_ = absl::MakeSpan(static_cast<std::byte*>(mapped), kSize);
  madvise(mapped, kSize, MADV_DONTFORK);
  // A page that cannot be had is an error here, and a signal later.
  if (madvise(mapped, kSize, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
    return NoFile(errno);
  }
  const Rings rings = made.rings();
  new (rings.requests.words) RingWords();
  new (rings.news.words) RingWords();
  return made;
}

RingFile::~RingFile() {
  // A child may have something else at these addresses.
  if (bytes_.empty() || !file_.process().IsCurrent()) return;
  munmap(bytes_.data(), bytes_.size());
}

}  // namespace terrace
