#include "aio/uring/uring_requests.h"

#include <fcntl.h>
#include <liburing.h>

#include "base/check.h"
#include "base/page_cache.h"

namespace terrace {

uint64_t UringRequests::Add(const IoRequest& request,
                            const UringFiles::File& file) {
  if (free_.empty()) {
    free_.push_back(places_.size());
    places_.emplace_back();
  }
  const uint64_t place = free_.back();
  free_.pop_back();
  places_[place] = {.tag = request.tag,
                    .file = file,
                    .direction = request.direction,
                    .offset = request.offset,
                    .step = Step::kMove};
  ++in_flight_;
  return place;
}

IoResult UringRequests::End(uint64_t place, int64_t result) {
  Place& ended = places_[place];
  TERRACE_CHECK(ended.step != Step::kFree);
  ended.step = Step::kFree;
  free_.push_back(place);
  --in_flight_;
  return {ended.tag, result};
}

IoResult UringRequests::Fail(uint64_t place, int error) {
  return End(place, -error);
}

void UringRequests::FailAll(int error, std::deque<IoResult>* ended) {
  for (uint64_t place = 0; place < places_.size(); ++place) {
    if (places_[place].step == Step::kFree) continue;
    ended->push_back(End(place, -error));
  }
}

std::optional<IoResult> UringRequests::OnResult(io_uring* ring, uint64_t place,
                                                int result) {
  Place& request = places_[place];
  if (!request.file.leaves_pages) return End(place, result);
  if (request.step == Step::kMove) request.moved_bytes = result;
  const bool is_lost = request.step == Step::kWriteOut && LosesBytes(-result);
  io_uring_sqe* sqe = nullptr;
  if (request.moved_bytes > 0 && request.step != Step::kDrop && !is_lost) {
    sqe = io_uring_get_sqe(ring);  // null, and pages stay, where it is full
  }
  if (sqe == nullptr) return End(place, is_lost ? result : request.moved_bytes);
  const auto offset = static_cast<uint64_t>(request.offset);
  if (request.step == Step::kMove && request.direction == IoDirection::kWrite) {
    request.step = Step::kWriteOut;
    io_uring_prep_sync_file_range(
        sqe, request.file.fd, static_cast<unsigned>(request.moved_bytes),
        offset,
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
            SYNC_FILE_RANGE_WAIT_AFTER);
  } else {
    request.step = Step::kDrop;
    io_uring_prep_fadvise(sqe, request.file.fd, offset, request.moved_bytes,
                          POSIX_FADV_DONTNEED);
  }
  if (request.file.is_registered) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(sqe, place);
  return std::nullopt;
}

}  // namespace terrace
