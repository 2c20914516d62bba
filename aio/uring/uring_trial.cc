#include "aio/uring/uring_trial.h"

#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <initializer_list>
#include <string>

#include "absl/strings/str_cat.h"
#include "aio/io_error.h"
#include "aio/uring/uring_ring.h"
#include "base/io_fault.h"

namespace terrace {
namespace {

constexpr unsigned kEntries = 4;

// A ring of its own, on which each call is tried until one is refused.
class Trial {
 public:
  explicit Trial(unsigned setup_flags) {
    io_uring_params params = {};
    params.flags = setup_flags;
    params.cq_entries = 2 * kEntries;
    const int error = own_.Open(kEntries, &ring_, &params);
    has_ring_ = error == 0;
    is_disabled_ = (setup_flags & IORING_SETUP_R_DISABLED) != 0;
    Judge("io_uring_setup", error, {});
  }
  ~Trial() {
    if (has_ring_) own_.Exit(&ring_);
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  absl::Status Run() {
    if (refusal_.ok()) TryFiles();
    if (refusal_.ok()) TryWorkers();
    if (refusal_.ok()) TryBuffers();
    if (refusal_.ok() && is_disabled_) TryEnable();
    if (refusal_.ok()) TryEnter();
    return refusal_;
  }

 private:
  // Whether the call did what it was to. An error that is not among the
  // `expected` ones is a refusal.
  bool Judge(const char* call, int error, std::initializer_list<int> expected) {
    if (error <= 0) return true;
    if (std::find(expected.begin(), expected.end(), error) == expected.end()) {
      refusal_ = RingRefusal(call, error);
    }
    return false;
  }

  void TryFiles() {
    if (!Judge("io_uring_register(IORING_REGISTER_FILES2)",
               -io_uring_register_files_sparse(&ring_, 1), {EINVAL, EMFILE})) {
      return;
    }
    const int none = -1;  // leaves the place empty
    Judge("io_uring_register(IORING_REGISTER_FILES_UPDATE)",
          -io_uring_register_files_update(&ring_, 0, &none, 1), {EINVAL});
  }

  void TryWorkers() {
    unsigned workers[] = {0, 0};  // as many as there were
    Judge("io_uring_register(IORING_REGISTER_IOWQ_MAX_WORKERS)",
          -io_uring_register_iowq_max_workers(&ring_, workers), {EINVAL});
  }

  void TryBuffers() {
    std::byte bytes[64];
    const iovec slot = {bytes, sizeof(bytes)};
    if (Judge("io_uring_register(IORING_REGISTER_BUFFERS2)",
              -io_uring_register_buffers_sparse(&ring_, 1), {EINVAL, ENOMEM})) {
      Judge("io_uring_register(IORING_REGISTER_BUFFERS_UPDATE)",
            -io_uring_register_buffers_update_tag(&ring_, 0, &slot, nullptr, 1),
            {EINVAL, ENOMEM, EFAULT, EOPNOTSUPP});
    } else if (refusal_.ok()) {
      Judge("io_uring_register(IORING_REGISTER_BUFFERS)",
            -io_uring_register_buffers(&ring_, &slot, 1),
            {EINVAL, ENOMEM, EFAULT, EOPNOTSUPP});
    }
  }

  void TryEnable() {
    Judge("io_uring_register(IORING_REGISTER_ENABLE_RINGS)",
          -io_uring_register(ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS,
                             nullptr, 0),
          {});
  }

  void TryEnter() {
    io_uring_prep_nop(io_uring_get_sqe(&ring_));
    const int error = -io_uring_submit_and_wait(&ring_, 1);
    if (!IsPassing(error)) Judge("io_uring_enter", error, {});
  }

  UringRing own_;
  io_uring ring_ = {};
  bool has_ring_ = false;
  bool is_disabled_ = false;
  absl::Status refusal_;
};

}  // namespace

absl::Status TryRing(unsigned setup_flags) { return Trial(setup_flags).Run(); }

absl::Status RingRefusal(const char* call, int error) {
  return WithIoFault(
      absl::UnavailableError(absl::StrCat(call, ": ", DescribeErrno(error))),
      {.error = error});
}

bool IsPassing(int error) {
  return error == EAGAIN || error == EBUSY || error == EINTR || error == ETIME;
}

}  // namespace terrace
