#include "tiers/system_error.h"

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "aio/io_error.h"
#include "base/io_fault.h"

namespace terrace {
namespace {

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case ENOTDIR:
    case ENAMETOOLONG:
    case ELOOP:
      return absl::StatusCode::kInvalidArgument;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return absl::StatusCode::kResourceExhausted;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

}  // namespace

absl::Status ErrnoError(const std::string& object, const std::string& what,
                        int error, const std::string& path) {
  return WithIoFault(
      absl::Status(CodeOf(error),
                   absl::StrCat(object, ": ", what, ": ", ErrnoName(error))),
      {.error = error, .path = path.empty() ? object : path});
}

bool LacksRoom(const absl::Status& status) {
  const int error = IoFaultOf(status).error;
  return !status.ok() && (error == ENOSPC || error == EDQUOT);
}

std::string ErrnoName(int error) { return DescribeErrno(error); }

}  // namespace terrace
