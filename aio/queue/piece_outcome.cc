#include "aio/queue/piece_outcome.h"

#include <algorithm>
#include <cerrno>

#include "aio/io_error.h"
#include "base/bytes.h"

namespace terrace {
namespace {

constexpr absl::Duration kFirstPause = absl::Microseconds(100);
constexpr absl::Duration kLongestPause = absl::Milliseconds(50);

absl::Status NothingMoved(const IoRequest& request, absl::string_view path) {
  return request.direction == IoDirection::kRead
             ? RequestError(absl::StatusCode::kDataLoss, path, request,
                            "unexpected end of file")
             : IoError(path, request, EIO);
}

int RetriesOf(int error, IoDirection direction, const IoQueueOptions& options) {
  if (error == EAGAIN || error == EINTR) return options.max_retries;
  if (error == EIO && direction == IoDirection::kRead) {
    return options.read_error_retries;
  }
  return 0;
}

}  // namespace

PieceOutcome OutcomeOf(const IoRequest& request, int64_t result,
                       absl::string_view path, const IoQueueOptions& options) {
  PieceOutcome outcome;
  if (result < 0) {
    const auto error = static_cast<int>(-result);
    outcome.retries = RetriesOf(error, request.direction, options);
    outcome.error = IoError(path, request, error);
    return outcome;
  }
  outcome.moved_bytes = RoundDown(result, kBlockBytes);
  if (outcome.moved_bytes > 0) return outcome;
  // Less than a block: the same block again, but not for ever.
  outcome.retries = result > 0 ? options.max_retries : 0;
  outcome.error = NothingMoved(request, path);
  return outcome;
}

absl::Duration RetryPause(int attempts) {
  return std::min(kFirstPause * (1 << std::min(attempts, 20)), kLongestPause);
}

}  // namespace terrace
