#include "aio/io_error.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace terrace {

std::string DescribeErrno(int error) {
  const char* name = strerrorname_np(error);
  const char* description = strerrordesc_np(error);
  if (name == nullptr || description == nullptr) {
    return absl::StrCat("errno ", error);
  }
  return absl::StrCat(name, " (", description, ")");
}

std::string DescribeFailure(absl::string_view path, const IoRequest& request,
                            absl::string_view reason) {
  const bool is_read = request.direction == IoDirection::kRead;
  return absl::StrCat(is_read ? "read" : "write", " failed: ", path,
                      ", offset ", request.offset, ", ", request.size_bytes,
                      " bytes: ", reason);
}

absl::Status IoError(absl::string_view path, const IoRequest& request,
                     int error) {
  const std::string message =
      DescribeFailure(path, request, DescribeErrno(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    case EINVAL:
    case EBADF:
    case EFAULT:
      return absl::InternalError(absl::StrFormat(
          "%s, address %p", message, static_cast<void*>(request.data)));
    case EIO:
      // The tier above still has the bytes of a failed write.
      return request.direction == IoDirection::kRead
                 ? absl::DataLossError(message)
                 : absl::UnavailableError(message);
    default:
      return absl::UnavailableError(message);
  }
}

}  // namespace terrace
