// What an error of the system carries beside its message, for programs that
// act on it: the errno, the path and the offset, as a payload of the Status.
// Copies of a Status keep it. Code that makes a new one from another's message
// calls Reworded, which takes it along.
//
// Thread-safe: values only.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace terrace {

struct IoFault {
  static constexpr int64_t kNoOffset = -1;

  int error = 0;  // an errno; 0: the system refused nothing
  std::string path;
  int64_t offset = kNoOffset;  // bytes, in the file at the path
};

// The status with the fault; where it has one already, with what that lacks.
absl::Status WithIoFault(absl::Status status, const IoFault& fault);

// An empty fault where the status has none.
IoFault IoFaultOf(const absl::Status& status);

// Another message, and perhaps another code, with what `status` carries.
absl::Status Reworded(const absl::Status& status, absl::string_view message);
absl::Status Reworded(const absl::Status& status, absl::StatusCode code,
                      absl::string_view message);

}  // namespace terrace
