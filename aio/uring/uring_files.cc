#include "aio/uring/uring_files.h"

#include <liburing.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "aio/engine.h"
#include "aio/io_error.h"
#include "aio/make_engine.h"
#include "base/bytes.h"
#include "base/page_cache.h"

namespace terrace {
namespace {

// Of a file, of each kind. More would take the processor from computation and
// win nothing.
constexpr int kWorkers = 4;

// Whether the kernel can start a transfer of the file without waiting. NFS and
// others have it done by a worker always.
bool StartsAtOnce(int fd) {
  alignas(kBlockBytes) std::byte block[kBlockBytes];
  const iovec into = {block, sizeof(block)};
  return preadv2(fd, &into, 1, 0, RWF_NOWAIT) >= 0 || errno != EOPNOTSUPP;
}

}  // namespace

int UringFiles::MakeTable(io_uring* ring) {
  constexpr int kPlaces = kSparePlace + 1;
  int error = -io_uring_register_files_sparse(ring, kPlaces);
  if (error == EINVAL) {  // kernels before 5.19 have the older way alone
    std::array<int, kPlaces> none;
    none.fill(-1);
    error = -io_uring_register_files(ring, none.data(), kPlaces);
  }
  return error;
}

int UringFiles::Add(io_uring* ring, int fd) {
  const int index = static_cast<int>(files_.size());
  // Of a FUSE file the kernel asks by poll whether it may start at once, and
  // then starts it where it stands: it would wait for the file's server.
  File file = {.fd = fd,
               .starts_in_worker = IsOnFuse(fd),
               .leaves_pages = LeavesPages(fd)};
  file.needs_workers =
      file.starts_in_worker || file.leaves_pages || !StartsAtOnce(fd);
  if (file.leaves_pages) ReadOnlyWhatIsAsked(fd);
  if (index < kSparePlace &&
      io_uring_register_files_update(ring, static_cast<unsigned>(index), &fd,
                                     1) == 1) {
    file.is_registered = true;
    file.fd = index;
  }
  files_.push_back(file);
  LimitWorkers(ring);
  return index;
}

int UringFiles::Slots(int index) const {
  return Find(index).needs_workers ? kWorkers : IoEngine::kMostSlots;
}

// Beside files that need them for all that they move, there are enough for the
// others too, whose devices may be full and hand them all that is in flight.
void UringFiles::LimitWorkers(io_uring* ring) {
  const bool is_shared =
      std::any_of(files_.begin(), files_.end(),
                  [](const File& f) { return f.needs_workers; });
  unsigned sum = 0;
  for (int i = 0; i < static_cast<int>(files_.size()); ++i) {
    sum += static_cast<unsigned>(is_shared ? Slots(i) : kWorkers);
  }
  unsigned workers[] = {sum, sum};
  worker_error_ = -io_uring_register_iowq_max_workers(ring, workers);
}

UringFiles::File UringFiles::Find(int index) const {
  const bool is_known = index >= 0 && index < static_cast<int>(files_.size());
  return is_known ? files_[static_cast<size_t>(index)] : File{};
}

std::string UringFiles::ToString() const {
  const auto registered =
      std::count_if(files_.begin(), files_.end(),
                    [](const File& file) { return file.is_registered; });
  std::string text = registered > 0 ? ", files registered" : "";
  if (registered < static_cast<ptrdiff_t>(files_.size())) {
    text = absl::StrCat(", ", registered, " of ", files_.size(),
                        " files registered");
  }
  // Kernels before 5.15 know no such limit.
  if (worker_error_ > 0 && worker_error_ != EINVAL) {
    absl::StrAppend(&text,
                    ", workers not limited: ", DescribeErrno(worker_error_));
  }
  return text;
}

}  // namespace terrace
