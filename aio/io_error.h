// What the kernel answered, as a Status that names everything a reader of a
// log needs: direction, path, offset, bytes, errno. All but the direction and
// the bytes are in its payload too; see base/io_fault.h.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aio/engine.h"

namespace terrace {

// "EIO (Input/output error)"; thread-safe.
std::string DescribeErrno(int error);

// "read failed: /mnt/a/state, offset 4096, 4194304 bytes: <reason>".
std::string DescribeFailure(absl::string_view path, const IoRequest& request,
                            absl::string_view reason);

// A request that failed without an errno.
absl::Status RequestError(absl::StatusCode code, absl::string_view path,
                          const IoRequest& request, absl::string_view reason);

// A request of an engine that has failed: IoEngine::failure().
absl::Status EngineError(absl::string_view path, const IoRequest& request,
                         const absl::Status& failure);

// The Status of a request that ended with this errno, retries exhausted:
// ResourceExhausted where no bytes are left, DataLoss for an unreadable
// medium, Internal for what only we can have done, else Unavailable.
absl::Status IoError(absl::string_view path, const IoRequest& request,
                     int error);

}  // namespace terrace
