#include "tests/support/accelerator/twin_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace terrace {
namespace {

int ProtectionOf(TwinMapping::Grant grant) {
  switch (grant) {
    case TwinMapping::Grant::kNothing:
      return PROT_NONE;
    case TwinMapping::Grant::kReading:
      return PROT_READ;
    case TwinMapping::Grant::kAll:
      return PROT_READ | PROT_WRITE;
  }
  return PROT_NONE;
}

void Expect(bool is_right, const char* call, size_t bytes) {
  if (is_right) return;
  throw std::system_error(errno, std::generic_category(),
                          std::string("accelerator: ") + call + " of " +
                              std::to_string(bytes) + " bytes");
}

void* Map(int file, size_t bytes, int protection) {
  void* const at = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE,
                        file, /*offset=*/0);
  Expect(at != MAP_FAILED, "mmap", bytes);
  return at;
}

}  // namespace

TwinMapping::TwinMapping(size_t bytes, Grant grant) : bytes_(bytes) {
  file_ = memfd_create("accelerator", MFD_CLOEXEC);
  Expect(file_ >= 0, "memfd_create", bytes);
  Expect(ftruncate(file_, static_cast<off_t>(bytes)) == 0, "ftruncate", bytes);
  begin_ = reinterpret_cast<uintptr_t>(Map(file_, bytes, ProtectionOf(grant)));
  twin_ = static_cast<std::byte*>(Map(file_, bytes, PROT_READ | PROT_WRITE));
  Expect(madvise(twin_, bytes, MADV_DONTFORK) == 0, "madvise", bytes);
  // A program that faults need not write it all down.
  for (void* const at :
       {reinterpret_cast<void*>(begin_), static_cast<void*>(twin_)}) {
    Expect(madvise(at, bytes, MADV_DONTDUMP) == 0, "madvise", bytes);
  }
}

TwinMapping::~TwinMapping() {
  munmap(twin_, bytes_);
  munmap(reinterpret_cast<void*>(begin_), bytes_);
  close(file_);
}

void TwinMapping::Set(AddressRange pages, Grant grant) {
  const size_t bytes = pages.end - pages.begin;
  Expect(mprotect(reinterpret_cast<void*>(pages.begin), bytes,
                  ProtectionOf(grant)) == 0,
         "mprotect", bytes);
}

void TwinMapping::Discard(AddressRange pages) {
  const size_t bytes = pages.end - pages.begin;
  Expect(fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                   static_cast<off_t>(pages.begin - begin_),
                   static_cast<off_t>(bytes)) == 0,
         "fallocate", bytes);
}

}  // namespace terrace
