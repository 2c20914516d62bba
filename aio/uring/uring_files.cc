#include "aio/uring/uring_files.h"

#include <liburing.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "aio/make_engine.h"
#include "runtime/base/page_cache.h"

namespace terrace {

bool UringFiles::MakeTable(io_uring* ring) {
  has_table_ = io_uring_register_files_sparse(ring, kSparePlace + 1) == 0;
  return has_table_;
}

int UringFiles::Add(io_uring* ring, int fd) {
  const int index = static_cast<int>(files_.size());
  // Of a FUSE file the kernel asks by poll whether it may start at once, and
  // then starts it where it stands: it would wait for the file's server.
  File file = {fd, false, IsOnFuse(fd), LeavesPages(fd)};
  if (file.leaves_pages) ReadOnlyWhatIsAsked(fd);
  if (has_table_ && index < kSparePlace &&
      io_uring_register_files_update(ring, static_cast<unsigned>(index), &fd,
                                     1) == 1) {
    file.is_registered = true;
    file.fd = index;
  }
  files_.push_back(file);
  return index;
}

UringFiles::File UringFiles::Find(int index) const {
  const bool is_known = index >= 0 && index < static_cast<int>(files_.size());
  return is_known ? files_[static_cast<size_t>(index)] : File{};
}

std::string UringFiles::ToString() const {
  const auto registered =
      std::count_if(files_.begin(), files_.end(),
                    [](const File& file) { return file.is_registered; });
  if (registered < static_cast<ptrdiff_t>(files_.size())) {
    return absl::StrCat(", ", registered, " of ", files_.size(),
                        " files registered");
  }
  return registered > 0 ? ", files registered" : "";
}

}  // namespace terrace
