#include "daemon/wire/ring/ring_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/system/memory_file.h"
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
  constexpr auto kSize = static_cast<size_t>(kRingFileBytes);
  RingFile made(MakeMemoryFile("terrace-rings", kRingFileBytes));
  if (!made.file_.ok()) return NoFile(errno);
  std::byte* const mapped = MapMemoryFile(made.file_, kRingFileBytes);
  if (mapped == nullptr) return NoFile(errno);
  made.bytes_ = absl::MakeSpan(mapped, kSize);
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
