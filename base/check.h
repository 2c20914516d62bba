// TERRACE_CHECK: for what only Terrace itself can do wrong; always on. What
// the world can do wrong is an absl::Status.
//
//   TERRACE_CHECK(extent.size_bytes > 0);
#pragma once

namespace terrace::internal {

[[noreturn]] void CheckFailed(const char* condition, const char* file,
                              int line);

}  // namespace terrace::internal

#define TERRACE_CHECK(condition)                                          \
  ((condition) ? static_cast<void>(0)                                     \
               : ::terrace::internal::CheckFailed(#condition, __FILE__,   \
                                                  __LINE__))
