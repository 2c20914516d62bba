#include "bench/io/uring_raw_loop.h"

#include <liburing.h>
#include <sys/uio.h>

#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aio/io_error.h"

namespace terrace {
namespace {

class RawLoop final : public UringRawLoop {
 public:
  RawLoop() = default;
  ~RawLoop() override {
    if (has_ring_) io_uring_queue_exit(&ring_);
  }

  absl::Status Setup(const std::vector<int>& fds, absl::Span<std::byte> arena) {
    unsigned flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    int error = -io_uring_queue_init(64, &ring_, flags);
    if (error == EINVAL) error = -io_uring_queue_init(64, &ring_, 0);
    if (error != 0) {
      return absl::UnavailableError(
          absl::StrCat("no io_uring: ", DescribeErrno(error)));
    }
    has_ring_ = true;
    fds_ = fds;
    has_files_ =
        io_uring_register_files(&ring_, fds.data(),
                                static_cast<unsigned>(fds.size())) == 0;
    const iovec whole = {arena.data(), arena.size()};
    is_fixed_ = io_uring_register_buffers(&ring_, &whole, 1) == 0;
    return absl::OkStatus();
  }

  absl::Status Run(int depth,
                   const std::function<bool(IoRequest*)>& next) override {
    int in_flight = 0;
    IoRequest request;
    bool has_more = true;
    while (true) {
      while (has_more && in_flight < depth) {
        has_more = next(&request);
        if (!has_more) break;
        Prepare(request);
        ++in_flight;
      }
      if (in_flight == 0) return absl::OkStatus();
      const int submitted = io_uring_submit_and_wait(&ring_, 1);
      if (submitted < 0) {
        return absl::UnavailableError(
            absl::StrCat("submit: ", DescribeErrno(-submitted)));
      }
      io_uring_cqe* cqe = nullptr;
      while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
        const int64_t result = cqe->res;
        const auto expected = static_cast<int64_t>(cqe->user_data);
        io_uring_cqe_seen(&ring_, cqe);
        --in_flight;
        if (result != expected) {
          return absl::UnavailableError(
              absl::StrCat("raw loop moved ", result, " of ", expected));
        }
      }
    }
  }

 private:
  void Prepare(const IoRequest& request) {
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    const auto size = static_cast<unsigned>(request.size_bytes);
    const auto offset = static_cast<uint64_t>(request.offset);
    const bool is_read = request.direction == IoDirection::kRead;
    const int fd = has_files_ ? request.file : fds_[request.file];
    if (is_fixed_ && is_read) {
      io_uring_prep_read_fixed(sqe, fd, request.data, size, offset, 0);
    } else if (is_fixed_) {
      io_uring_prep_write_fixed(sqe, fd, request.data, size, offset, 0);
    } else if (is_read) {
      io_uring_prep_read(sqe, fd, request.data, size, offset);
    } else {
      io_uring_prep_write(sqe, fd, request.data, size, offset);
    }
    if (has_files_) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(sqe, size);
  }

  io_uring ring_ = {};
  bool has_ring_ = false;
  bool is_fixed_ = false;
  bool has_files_ = false;
  std::vector<int> fds_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<UringRawLoop>> UringRawLoop::Create(
    const std::vector<int>& fds, absl::Span<std::byte> arena) {
  auto loop = std::make_unique<RawLoop>();
  const absl::Status status = loop->Setup(fds, arena);
  if (!status.ok()) return status;
  return std::unique_ptr<UringRawLoop>(std::move(loop));
}

}  // namespace terrace
