#include "aio/uring_page_cache.h"

#include <fcntl.h>
#include <liburing.h>

#include "runtime/base/page_cache.h"

namespace terrace {

void UringPageCache::Add(const IoRequest& request, int fd, bool is_fixed) {
  transfers_[request.tag] = {fd, is_fixed, request.direction, request.offset};
}

bool UringPageCache::GoesOn(io_uring* ring, uint64_t tag, int* result) {
  const auto found = transfers_.find(tag);
  if (found == transfers_.end()) return false;
  Transfer& transfer = found->second;
  if (transfer.step == Step::kMove) transfer.moved_bytes = *result;
  const bool is_lost = transfer.step == Step::kWriteOut && LosesBytes(-*result);
  io_uring_sqe* sqe = nullptr;
  if (transfer.moved_bytes > 0 && transfer.step != Step::kDrop && !is_lost) {
    sqe = io_uring_get_sqe(ring);  // null, and pages stay, where it is full
  }
  if (sqe == nullptr) {
    if (!is_lost) *result = transfer.moved_bytes;
    transfers_.erase(found);
    return false;
  }
  const auto offset = static_cast<uint64_t>(transfer.offset);
  if (transfer.step == Step::kMove &&
      transfer.direction == IoDirection::kWrite) {
    transfer.step = Step::kWriteOut;
    io_uring_prep_sync_file_range(
        sqe, transfer.fd, static_cast<unsigned>(transfer.moved_bytes), offset,
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
            SYNC_FILE_RANGE_WAIT_AFTER);
  } else {
    transfer.step = Step::kDrop;
    io_uring_prep_fadvise(sqe, transfer.fd, offset, transfer.moved_bytes,
                          POSIX_FADV_DONTNEED);
  }
  if (transfer.is_fixed) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(sqe, tag);
  return true;
}

}  // namespace terrace
