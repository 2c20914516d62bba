// What an errno of a file, a mapping or a binding means to a caller.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace terrace {

// "<object>: <what>: ENOSPC (No space left on device)". NotFound: ENOENT;
// InvalidArgument: ENOTDIR, ENAMETOOLONG, ELOOP; PermissionDenied: EACCES,
// EPERM, EROFS; ResourceExhausted: ENOSPC, EDQUOT, EFBIG, ENOMEM, EMFILE,
// ENFILE; Unavailable: the rest. The payload (base/io_fault.h) has the
// errno and the path: `path`, or the object where that is empty.
absl::Status ErrnoError(const std::string& object, const std::string& what,
                        int error, const std::string& path = "");

// Whether it says that the disk, or the user's share of it, is full.
bool LacksRoom(const absl::Status& status);

// "ENOSPC (No space left on device)".
std::string ErrnoName(int error);

}  // namespace terrace
