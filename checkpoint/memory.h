// Where checkpoints take memory by what a file says.
#pragma once

#include <cerrno>
#include <new>
#include <stdexcept>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/io_fault.h"

namespace terrace {

// ResourceExhausted, with ENOMEM and the path.
inline absl::Status NoMemory(const std::string& path, absl::string_view what) {
  return WithIoFault(
      absl::ResourceExhaustedError(absl::StrCat(path, ": ", what)),
      {.error = ENOMEM, .path = path});
}

// Does the work, which returns a Status or StatusOr; memory that it did not get
// becomes NoMemory.
template <typename Work>
auto WithinMemory(const std::string& path, const Work& work)
    -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
  return NoMemory(path, "there is not the memory that it takes");
}

}  // namespace terrace
