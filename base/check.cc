#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace terrace::internal {

void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "terrace: internal error at %s:%d: %s\n", file, line,
               condition);
  std::abort();
}

}  // namespace terrace::internal
