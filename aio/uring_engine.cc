// io_uring, through liburing, which only aio/uring_*.cc include.
//
// One ring with one user. It is made disabled and enabled by the thread that
// first submits, polls or waits: with SINGLE_ISSUER that thread owns it from
// then on, and registration by another fails. Of the flags, DEFER_TASKRUN is
// the one that counts: completions run only when the owner asks for them and
// never interrupt a compute thread.
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aio/io_error.h"
#include "aio/make_engine.h"
#include "aio/uring_buffers.h"
#include "aio/uring_page_cache.h"
#include "runtime/base/bytes.h"
#include "runtime/base/check.h"
#include "runtime/base/page_cache.h"

namespace terrace {
namespace {

// In flight at most; the completion queue holds twice as many and the wake's
// poll, so it cannot overflow.
constexpr unsigned kMaxInFlight = 256;
constexpr unsigned kSubmissionEntries = 256;
constexpr unsigned kCompletionEntries = 1024;
constexpr int kFileSlots = 128;
// A request's length is 32 bits wide and cut to this by the kernel; what is
// cut comes back as a short transfer.
constexpr int64_t kMaxRequestBytes = (int64_t{1} << 31) - kBlockBytes;
constexpr uint64_t kWakeTag = LIBURING_UDATA_TIMEOUT - 1;
// Of the kernel's worker threads, of each kind. They move what cannot be
// started without waiting: writes that extend a file or fill a hole. More
// would take the processor from computation and win nothing on one file.
constexpr unsigned kMaxWorkers = 4;
// Large requests go to the kernel one by one: to map a MiB takes it about 10
// us, in which the device can already move the one before. Together they reach
// it when all are mapped: 6 % less of a disk's rate with 8 of 1 MiB in flight.
constexpr int64_t kSubmitBytes = int64_t{1} << 20;
// When the kernel had no memory to submit, try again after this.
constexpr absl::Duration kResubmitPause = absl::Milliseconds(1);

struct RingFlags {
  unsigned flags;
  const char* name;
};
constexpr RingFlags kRingFlags[] = {
    {IORING_SETUP_R_DISABLED | IORING_SETUP_CQSIZE | IORING_SETUP_SUBMIT_ALL |
         IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
         IORING_SETUP_TASKRUN_FLAG,
     "SINGLE_ISSUER|DEFER_TASKRUN|SUBMIT_ALL|CQSIZE"},
    {IORING_SETUP_R_DISABLED | IORING_SETUP_CQSIZE | IORING_SETUP_COOP_TASKRUN,
     "COOP_TASKRUN|CQSIZE"},
    {0, "no flags"},
};

class UringEngine final : public IoEngine {
 public:
  static absl::StatusOr<std::unique_ptr<IoEngine>> Create(
      uint32_t unknown_flags) {
    auto engine = std::make_unique<UringEngine>();
    int error = EINVAL;
    for (const RingFlags& flags : kRingFlags) {
      const bool unknown = (flags.flags & unknown_flags) != 0;
      error = unknown ? EINVAL : engine->Setup(flags);
      if (error != EINVAL) break;
    }
    if (error == 0) error = engine->SetupWake();
    if (error != 0) {
      return absl::UnavailableError(
          absl::StrCat("no io_uring: ", DescribeErrno(error)));
    }
    return std::unique_ptr<IoEngine>(std::move(engine));
  }

  UringEngine() = default;

  // Waits for what the kernel still has: its buffers must not be written
  // after this. Not possible from another thread than the owner.
  ~UringEngine() override {
    if (has_ring_) {
      while (in_flight_ > 0 && io_uring_submit_and_wait(&ring_, 1) >= 0) {
        Reap();
      }
      io_uring_queue_exit(&ring_);
    }
    if (wake_fd_ >= 0) close(wake_fd_);
  }

  absl::StatusOr<int> AddFile(int fd) override {
    const int index = static_cast<int>(files_.size());
    // Of a FUSE file the kernel asks by poll whether it may start at once, and
    // then starts it where it stands: it would wait for the file's server.
    files_.push_back({fd, false, IsOnFuse(fd), LeavesPages(fd)});
    if (files_.back().leaves_pages) ReadOnlyWhatIsAsked(fd);
    if (has_file_table_ && index < kFileSlots) {
      files_.back().is_fixed =
          io_uring_register_files_update(&ring_, index, &fd, 1) == 1;
    }
    return index;
  }

  void RegisterArena(absl::Span<std::byte> arena) override {
    buffers_.Register(&ring_, arena);
  }
  int Submit(absl::Span<const IoRequest> requests) override;
  int Poll(absl::Span<IoResult> results) override;
  void Wait(absl::Time deadline) override;

  void Wake() override {
    const uint64_t one = 1;
    // Fails only when 2^64 - 1 wakes are pending: then it is woken anyway.
    [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
  }

  absl::Time NextEvent() const override {
    if (!done_.empty()) return absl::UnixEpoch();
    return has_unsubmitted_ ? resubmit_at_ : absl::InfiniteFuture();
  }

  EngineInfo info() const override {
    EngineInfo info;
    info.name = "io_uring";
    info.reason = flags_name_;
    const auto fixed = std::count_if(files_.begin(), files_.end(),
                                     [](const File& f) { return f.is_fixed; });
    if (fixed == static_cast<ptrdiff_t>(files_.size())) {
      absl::StrAppend(&info.reason, fixed > 0 ? ", files registered" : "");
    } else {
      absl::StrAppend(&info.reason, ", ", fixed, " of ", files_.size(),
                      " files registered");
    }
    const int64_t registered = buffers_.registered_bytes();
    if (buffers_.error() != 0) {
      absl::StrAppend(
          &info.reason, ", buffers not registered",
          registered == 0 ? "" : absl::StrCat(" beyond ", registered, " bytes"),
          ": ", DescribeErrno(buffers_.error()));
    }
    info.registered_bytes = registered;
    info.buffers_registered = registered > 0 && buffers_.error() == 0;
    return info;
  }

 private:
  struct File {
    int fd = -1;
    bool is_fixed = false;
    bool starts_in_worker = false;  // of the kernel
    bool leaves_pages = false;
  };

  int Setup(const RingFlags& flags);
  int SetupWake();
  void Own();
  void ArmWake();
  void DrainWake();
  void Prepare(io_uring_sqe* sqe, const IoRequest& request);
  bool HasDeferred() const;
  void Flush();
  void Reap();

  io_uring ring_ = {};
  bool has_ring_ = false;
  bool is_disabled_ = false;  // until its first use
  bool is_owned_ = false;
  const char* flags_name_ = "";
  bool has_file_table_ = false;
  std::vector<File> files_;
  UringPageCache page_cache_;  // of those that leave pages

  UringBuffers buffers_;

  int wake_fd_ = -1;
  bool wake_armed_ = false;
  bool woken_ = false;

  unsigned in_flight_ = 0;
  bool has_unsubmitted_ = false;  // the kernel did not take it
  absl::Time resubmit_at_ = absl::InfiniteFuture();
  std::deque<IoResult> done_;
};

int UringEngine::Setup(const RingFlags& flags) {
  io_uring_params params = {};
  params.flags = flags.flags;
  params.cq_entries = kCompletionEntries;
  const int error =
      -io_uring_queue_init_params(kSubmissionEntries, &ring_, &params);
  if (error != 0) return error;
  has_ring_ = true;
  is_disabled_ = (flags.flags & IORING_SETUP_R_DISABLED) != 0;
  flags_name_ = flags.name;
  // A forked child must not touch the ring. Best effort: it would have to
  // call this very object.
  io_uring_ring_dontfork(&ring_);
  has_file_table_ = io_uring_register_files_sparse(&ring_, kFileSlots) == 0;
  // Kernels before 5.15 know no such limit.
  unsigned workers[] = {kMaxWorkers, kMaxWorkers};
  io_uring_register_iowq_max_workers(&ring_, workers);
  return 0;
}

int UringEngine::SetupWake() {
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  return wake_fd_ >= 0 ? 0 : errno;
}

void UringEngine::Own() {
  if (is_owned_) return;
  is_owned_ = true;
  if (is_disabled_) {
    // io_uring_enable_rings by hand: 2.3 declares it but does not export it.
    const int error = -io_uring_register(
        ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
    TERRACE_CHECK(error == 0);
  }
  ArmWake();
}

void UringEngine::Prepare(io_uring_sqe* sqe, const IoRequest& request) {
  const bool is_known =
      request.file >= 0 && request.file < static_cast<int>(files_.size());
  const File file = is_known ? files_[request.file] : File{};
  const int fd = file.is_fixed ? request.file : file.fd;
  const auto size =
      static_cast<unsigned>(std::min(request.size_bytes, kMaxRequestBytes));
  const auto offset = static_cast<uint64_t>(request.offset);
  const int slot = buffers_.SlotOf(request);
  if (request.direction == IoDirection::kRead) {
    if (slot >= 0) {
      io_uring_prep_read_fixed(sqe, fd, request.data, size, offset, slot);
    } else {
      io_uring_prep_read(sqe, fd, request.data, size, offset);
    }
  } else {
    if (slot >= 0) {
      io_uring_prep_write_fixed(sqe, fd, request.data, size, offset, slot);
    } else {
      io_uring_prep_write(sqe, fd, request.data, size, offset);
    }
  }
  const unsigned flags = (file.is_fixed ? IOSQE_FIXED_FILE : 0U) |
                         (file.starts_in_worker ? IOSQE_ASYNC : 0U);
  if (flags != 0) io_uring_sqe_set_flags(sqe, flags);
  io_uring_sqe_set_data64(sqe, request.tag);
  if (file.leaves_pages) page_cache_.Add(request, fd, file.is_fixed);
}

int UringEngine::Submit(absl::Span<const IoRequest> requests) {
  Own();
  int taken = 0;
  int64_t prepared_bytes = 0;
  for (const IoRequest& request : requests) {
    TERRACE_CHECK(request.tag < kWakeTag);
    if (in_flight_ >= kMaxInFlight) break;
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) {
      Flush();
      sqe = io_uring_get_sqe(&ring_);
    }
    if (sqe == nullptr) break;  // the kernel consumed less than it was given
    Prepare(sqe, request);
    ++in_flight_;
    ++taken;
    prepared_bytes += request.size_bytes;
    if (prepared_bytes >= kSubmitBytes) {
      Flush();
      prepared_bytes = 0;
    }
  }
  return taken;  // small ones go with the next Poll or Wait: one call fewer
}

// Gives the submission queue to the kernel. What it does not consume stays
// there, is ours no less, and goes with the next call.
void UringEngine::Flush() {
  if (io_uring_sq_ready(&ring_) > 0) io_uring_submit(&ring_);
  has_unsubmitted_ = io_uring_sq_ready(&ring_) > 0;
  if (has_unsubmitted_) resubmit_at_ = SystemClock().Now() + kResubmitPause;
}

// Deferred completions appear only when asked for.
bool UringEngine::HasDeferred() const {
  if ((ring_.flags & IORING_SETUP_TASKRUN_FLAG) == 0) return in_flight_ > 0;
  return (IO_URING_READ_ONCE(*ring_.sq.kflags) & IORING_SQ_TASKRUN) != 0;
}

int UringEngine::Poll(absl::Span<IoResult> results) {
  Own();
  Flush();
  if (io_uring_cq_ready(&ring_) == 0 && HasDeferred()) {
    io_uring_get_events(&ring_);
  }
  Reap();
  const size_t n = std::min(results.size(), done_.size());
  std::copy_n(done_.begin(), n, results.begin());
  done_.erase(done_.begin(), done_.begin() + static_cast<ptrdiff_t>(n));
  return static_cast<int>(n);
}

void UringEngine::Reap() {
  io_uring_cqe* cqe = nullptr;
  unsigned head = 0;
  unsigned seen = 0;
  io_uring_for_each_cqe(&ring_, head, cqe) {
    ++seen;
    if (cqe->user_data == LIBURING_UDATA_TIMEOUT) continue;
    if (cqe->user_data == kWakeTag) {
      wake_armed_ = false;
      DrainWake();
      continue;
    }
    int result = cqe->res;
    if (page_cache_.GoesOn(&ring_, cqe->user_data, &result)) continue;
    TERRACE_CHECK(in_flight_ > 0);
    --in_flight_;
    done_.push_back({cqe->user_data, result});
  }
  io_uring_cq_advance(&ring_, seen);
}

void UringEngine::ArmWake() {
  if (wake_armed_) return;
  io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
  if (sqe == nullptr) return;
  io_uring_prep_poll_add(sqe, wake_fd_, POLLIN);
  io_uring_sqe_set_data64(sqe, kWakeTag);
  wake_armed_ = true;
}

void UringEngine::DrainWake() {
  uint64_t wakes = 0;
  if (read(wake_fd_, &wakes, sizeof(wakes)) == sizeof(wakes)) woken_ = true;
}

void UringEngine::Wait(absl::Time deadline) {
  Own();
  Reap();
  while (done_.empty() && !woken_) {
    ArmWake();
    absl::Duration left = deadline - SystemClock().Now();
    if (left <= absl::ZeroDuration()) break;
    // A wait is never longer than this, so that the sum cannot overflow; and
    // short where only another try can make progress.
    left = std::min(left, absl::Hours(1));
    if (has_unsubmitted_ || !wake_armed_) left = std::min(left, kResubmitPause);
    const timespec time = absl::ToTimespec(left);
    __kernel_timespec timeout = {time.tv_sec, time.tv_nsec};
    io_uring_cqe* cqe = nullptr;
    const int error =
        -io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &timeout, nullptr);
    has_unsubmitted_ = io_uring_sq_ready(&ring_) > 0;
    Reap();
    if (error > 0 && error != ETIME && error != EINTR && error != EBUSY) {
      // The kernel did not wait: without this the loop would spin.
      pollfd wake = {wake_fd_, POLLIN, 0};
      const timespec pause = absl::ToTimespec(std::min(left, kResubmitPause));
      ppoll(&wake, 1, &pause, nullptr);
      DrainWake();
    }
    if (!wake_armed_) DrainWake();
  }
  if (!has_unsubmitted_) Flush();  // it did not have to wait
  woken_ = false;
}

}  // namespace

absl::StatusOr<std::unique_ptr<IoEngine>> MakeUringEngine(
    uint32_t unknown_flags) {
  return UringEngine::Create(unknown_flags);
}

}  // namespace terrace
