#include "libtorch/offload/freed_blocks.h"

#include <malloc.h>

#include <cstdlib>

#include "absl/strings/match.h"

namespace terrace {
namespace {

constexpr int kLargeBlockBytes = 1 << 20;

bool IsSetByEnvironment() {
  if (std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr) return true;
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  return tunables != nullptr &&
         absl::StrContains(tunables, "glibc.malloc.mmap_threshold");
}

}  // namespace

void ReturnFreedBlocks() {
#ifdef __GLIBC__
  static const bool done =
      !IsSetByEnvironment() && mallopt(M_MMAP_THRESHOLD, kLargeBlockBytes) == 1;
  static_cast<void>(done);
#endif
}

void ReturnFreePages() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace terrace
