#include "aio/io_error.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/io_fault.h"

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

absl::Status RequestError(absl::StatusCode code, absl::string_view path,
                          const IoRequest& request, absl::string_view reason) {
  return WithIoFault(absl::Status(code, DescribeFailure(path, request, reason)),
                     {.path = std::string(path), .offset = request.offset});
}

absl::Status EngineError(absl::string_view path, const IoRequest& request,
                         const absl::Status& failure) {
  return WithIoFault(RequestError(absl::StatusCode::kUnavailable, path, request,
                                  std::string(failure.message())),
                     IoFaultOf(failure));
}

absl::Status IoError(absl::string_view path, const IoRequest& request,
                     int error) {
  const std::string reason = DescribeErrno(error);
  const auto failed = [&](absl::StatusCode code, absl::string_view why) {
    return WithIoFault(RequestError(code, path, request, why),
                       {.error = error});
  };
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return failed(absl::StatusCode::kResourceExhausted, reason);
    case EINVAL:
    case EBADF:
    case EFAULT:
      return failed(absl::StatusCode::kInternal,
                    absl::StrFormat("%s, address %p", reason,
                                    static_cast<void*>(request.data)));
    case EIO:
      // The tier above still has the bytes of a failed write.
      return failed(request.direction == IoDirection::kRead
                        ? absl::StatusCode::kDataLoss
                        : absl::StatusCode::kUnavailable,
                    reason);
    default:
      return failed(absl::StatusCode::kUnavailable, reason);
  }
}

}  // namespace terrace
