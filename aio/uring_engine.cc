// io_uring, through liburing, which only aio/uring_*.cc include.
//
// One ring with one user. It is made disabled and enabled by the thread that
// first submits, polls or waits: with SINGLE_ISSUER that thread owns it from
// then on, and registration by another fails. Of the flags, DEFER_TASKRUN is
// the one that counts: completions run only when the owner asks for them and
// never interrupt a compute thread.
//
// Where the kernel refuses a call later on, the ring is closed: what it was not
// given fails at once, the rest when the kernel has let go of it.
#include <liburing.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aio/io_error.h"
#include "aio/make_engine.h"
#include "aio/uring/uring_buffers.h"
#include "aio/uring/uring_end.h"
#include "aio/uring/uring_files.h"
#include "aio/uring/uring_requests.h"
#include "aio/uring/uring_ring.h"
#include "aio/uring/uring_trial.h"
#include "aio/uring/uring_wake.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/io_fault.h"

namespace terrace {
namespace {

constexpr unsigned kSubmissionEntries = 256;
// That a ring has slots for, even if there are fewer.
constexpr int kLeastFiles = 4;
// A request's length is 32 bits wide and cut to this by the kernel; what is
// cut comes back as a short transfer.
constexpr int64_t kMaxRequestBytes = (int64_t{1} << 31) - kBlockBytes;
// Large requests go to the kernel one by one: to map a MiB takes it about 10
// us, in which the device can already move the one before. Together they reach
// it when all are mapped: 6 % less of a disk's rate with 8 of 1 MiB in flight.
constexpr int64_t kSubmitBytes = int64_t{1} << 20;
// When the kernel had no memory to submit, try again after this.
constexpr absl::Duration kResubmitPause = absl::Milliseconds(1);
// For the end of a ring that is destroyed with requests in flight.
constexpr absl::Duration kEndPatience = absl::Minutes(1);

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
      uint32_t unknown_flags, int files) {
    auto engine = std::make_unique<UringEngine>(std::max(files, kLeastFiles));
    absl::Status refused;
    for (const RingFlags& flags : kRingFlags) {
      const bool unknown = (flags.flags & unknown_flags) != 0;
      const int error = unknown ? EINVAL : engine->Setup(flags);
      refused = error == 0 ? TryRing(flags.flags)
                           : RingRefusal("io_uring_setup", error);
      if (error != EINVAL) break;
    }
    if (refused.ok()) refused = engine->WatchEnd();
    const int error = refused.ok() ? engine->wake_.Open() : 0;
    if (error != 0) refused = RingRefusal("eventfd", error);
    if (refused.ok()) return std::unique_ptr<IoEngine>(std::move(engine));
    return Reworded(
        refused, absl::StrCat("no io_uring: ", std::string(refused.message())));
  }

  explicit UringEngine(int files) : most_in_flight_(files * kMostSlots) {}

  // Waits for what the kernel still has: its buffers must not be written
  // after this.
  ~UringEngine() override {
    while (has_ring_ && requests_.in_flight() > 0) {
      if (Called("io_uring_enter", io_uring_submit_and_wait(&ring_, 1))) Reap();
    }
    if (requests_.in_flight() > 0) end_.Await(kEndPatience);
    if (has_ring_) own_ring_.Exit(&ring_);
  }

  absl::StatusOr<int> AddFile(int fd) override {
    return files_.Add(&ring_, fd);
  }
  int Slots(int file) const override { return files_.Slots(file); }

  void RegisterArena(absl::Span<std::byte> arena) override {
    buffers_.Register(&ring_, arena);
  }
  bool UnregisterArena(absl::Span<std::byte> part) override {
    return !has_ring_ || buffers_.Unregister(&ring_, part);
  }
  int Submit(absl::Span<const IoRequest> requests) override;
  int Poll(absl::Span<IoResult> results) override;
  void Wait(absl::Time deadline) override;

  void Wake() override { wake_.Signal(); }

  absl::Time NextEvent() const override {
    if (!done_.empty()) return absl::UnixEpoch();
    return has_unsubmitted_ ? resubmit_at_ : absl::InfiniteFuture();
  }

  absl::Status failure() const override { return failure_; }

  EngineInfo info() const override {
    EngineInfo info;
    info.name = "io_uring";
    info.reason = absl::StrCat(flags_name_, files_.ToString());
    const int64_t registered = buffers_.registered_bytes();
    if (buffers_.error() != 0) {
      absl::StrAppend(
          &info.reason, ", buffers not registered",
          registered == 0 ? "" : absl::StrCat(" beyond ", registered, " bytes"),
          ": ", DescribeErrno(buffers_.error()));
    }
    if (!failure_.ok()) {
      absl::StrAppend(&info.reason,
                      ", refused since: ", std::string(failure_.message()));
    }
    info.registered_bytes = registered;
    info.buffers_registered = buffers_.has_all();
    return info;
  }

 private:
  int Setup(const RingFlags& flags);
  absl::Status WatchEnd();
  bool Own();
  void Prepare(io_uring_sqe* sqe, const IoRequest& request);
  bool HasDeferred() const;
  void Flush();
  void Reap();

  bool Called(const char* call, int result);
  void Fail(const char* call, int error);
  void EndWithRing();
  void WaitWithoutRing(absl::Duration left);

  const int most_in_flight_;
  io_uring ring_ = {};
  UringRing own_ring_;
  bool has_ring_ = false;
  bool is_disabled_ = false;  // until its first use
  bool is_owned_ = false;
  const char* flags_name_ = "";
  UringFiles files_;
  UringRequests requests_;
  UringBuffers buffers_;
  UringWake wake_;

  UringEnd end_;
  absl::Status failure_;

  bool has_unsubmitted_ = false;  // the kernel did not take it
  absl::Time resubmit_at_ = absl::InfiniteFuture();
  std::deque<IoResult> done_;
};

int UringEngine::Setup(const RingFlags& flags) {
  io_uring_params params = {};
  params.flags = flags.flags;
  // Twice as many as are in flight, and the wake's poll: it cannot overflow.
  params.cq_entries = static_cast<unsigned>(4 * most_in_flight_);
  const int error = own_ring_.Open(kSubmissionEntries, &ring_, &params);
  if (error != 0) return error;
  has_ring_ = true;
  is_disabled_ = (flags.flags & IORING_SETUP_R_DISABLED) != 0;
  flags_name_ = flags.name;
  return 0;
}

// A ring that the kernel refuses later on can be left only by who sees its end.
absl::Status UringEngine::WatchEnd() {
  const int error = files_.MakeTable(&ring_);
  return error == 0
             ? end_.Watch(&ring_, UringFiles::kSparePlace)
             : RingRefusal("io_uring_register(IORING_REGISTER_FILES)", error);
}

// False: it has failed.
bool UringEngine::Own() {
  if (is_owned_) return failure_.ok();
  is_owned_ = true;
  // io_uring_enable_rings by hand: 2.3 declares it but does not export it.
  if (is_disabled_ &&
      !Called("io_uring_register(IORING_REGISTER_ENABLE_RINGS)",
              io_uring_register(ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS,
                                nullptr, 0))) {
    return false;
  }
  wake_.Arm(&ring_);
  return true;
}

void UringEngine::Prepare(io_uring_sqe* sqe, const IoRequest& request) {
  const UringFiles::File file = files_.Find(request.file);
  const auto size =
      static_cast<unsigned>(std::min(request.size_bytes, kMaxRequestBytes));
  const auto offset = static_cast<uint64_t>(request.offset);
  const int slot = buffers_.SlotOf(request);
  if (request.direction == IoDirection::kRead) {
    if (slot >= 0) {
      io_uring_prep_read_fixed(sqe, file.fd, request.data, size, offset, slot);
    } else {
      io_uring_prep_read(sqe, file.fd, request.data, size, offset);
    }
  } else {
    if (slot >= 0) {
      io_uring_prep_write_fixed(sqe, file.fd, request.data, size, offset, slot);
    } else {
      io_uring_prep_write(sqe, file.fd, request.data, size, offset);
    }
  }
  const unsigned flags = (file.is_registered ? IOSQE_FIXED_FILE : 0U) |
                         (file.starts_in_worker ? IOSQE_ASYNC : 0U);
  if (flags != 0) io_uring_sqe_set_flags(sqe, flags);
  io_uring_sqe_set_data64(sqe, requests_.Add(request, file));
}

int UringEngine::Submit(absl::Span<const IoRequest> requests) {
  Own();
  int taken = 0;
  int64_t prepared_bytes = 0;
  for (const IoRequest& request : requests) {
    if (requests_.in_flight() >= most_in_flight_) break;
    io_uring_sqe* sqe = has_ring_ ? io_uring_get_sqe(&ring_) : nullptr;
    if (sqe == nullptr) {
      Flush();
      sqe = failure_.ok() ? io_uring_get_sqe(&ring_) : nullptr;
    }
    if (!failure_.ok()) {
      done_.push_back({request.tag, -IoFaultOf(failure_).error});
      ++taken;
      continue;
    }
    if (sqe == nullptr) break;  // the kernel consumed less than it was given
    Prepare(sqe, request);
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
  if (!failure_.ok() || io_uring_sq_ready(&ring_) == 0) return;
  if (!Called("io_uring_enter", io_uring_submit(&ring_))) return;
  has_unsubmitted_ = io_uring_sq_ready(&ring_) > 0;
  if (has_unsubmitted_) resubmit_at_ = SystemClock().Now() + kResubmitPause;
}

// Deferred completions appear only when asked for.
bool UringEngine::HasDeferred() const {
  if ((ring_.flags & IORING_SETUP_TASKRUN_FLAG) == 0) {
    return requests_.in_flight() > 0;
  }
  return (IO_URING_READ_ONCE(*ring_.sq.kflags) & IORING_SQ_TASKRUN) != 0;
}

int UringEngine::Poll(absl::Span<IoResult> results) {
  if (Own()) {
    Flush();
    if (failure_.ok() && io_uring_cq_ready(&ring_) == 0 && HasDeferred()) {
      Called("io_uring_enter", io_uring_get_events(&ring_));
    }
  }
  if (has_ring_) Reap();
  if (!failure_.ok()) EndWithRing();
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
    if (cqe->user_data == UringWake::kPlace) {
      wake_.OnPolled();
      continue;
    }
    const std::optional<IoResult> ended =
        requests_.OnResult(&ring_, cqe->user_data, cqe->res);
    if (ended.has_value()) done_.push_back(*ended);
  }
  io_uring_cq_advance(&ring_, seen);
}

// Whether the ring can be used further: the call has done what it was to, or
// will when it is made again.
bool UringEngine::Called(const char* call, int result) {
  if (result < 0 && !IsPassing(-result)) Fail(call, -result);
  return failure_.ok();
}

void UringEngine::Fail(const char* call, int error) {
  failure_ = RingRefusal(call, error);
  has_unsubmitted_ = false;
  Reap();
  // What the kernel has not taken of the submission queue it never will.
  const unsigned end = ring_.sq.sqe_tail;
  for (unsigned at = end - io_uring_sq_ready(&ring_); at != end; ++at) {
    const uint64_t place = ring_.sq.sqes[at & *ring_.sq.kring_mask].user_data;
    if (place >= UringWake::kPlace) continue;
    done_.push_back(requests_.Fail(place, error));
  }
  own_ring_.Exit(&ring_);
  has_ring_ = false;
}

// What the kernel had when the ring was refused, once it lets go of it.
void UringEngine::EndWithRing() {
  if (requests_.in_flight() == 0 || !end_.Await(absl::ZeroDuration())) return;
  requests_.FailAll(IoFaultOf(failure_).error, &done_);
}

void UringEngine::WaitWithoutRing(absl::Duration left) {
  pollfd events[] = {{wake_.fd(), POLLIN, 0}, {end_.fd(), POLLIN, 0}};
  const timespec time = absl::ToTimespec(left);
  ppoll(events, requests_.in_flight() > 0 ? 2 : 1, &time, nullptr);
  wake_.Take();
  EndWithRing();
}

void UringEngine::Wait(absl::Time deadline) {
  Own();
  if (has_ring_) Reap();
  while (done_.empty() && !wake_.is_woken()) {
    absl::Duration left = deadline - SystemClock().Now();
    if (left <= absl::ZeroDuration()) break;
    // A wait is never longer than this, so that the sum cannot overflow; and
    // short where only another try can make progress.
    left = std::min(left, absl::Hours(1));
    if (!failure_.ok()) {
      WaitWithoutRing(left);
      continue;
    }
    wake_.Arm(&ring_);
    const bool must_retry = has_unsubmitted_ || !wake_.is_armed();
    if (must_retry) left = std::min(left, kResubmitPause);
    const timespec time = absl::ToTimespec(left);
    __kernel_timespec timeout = {time.tv_sec, time.tv_nsec};
    io_uring_cqe* cqe = nullptr;
    const int result =
        io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &timeout, nullptr);
    if (!Called("io_uring_enter", result)) continue;
    has_unsubmitted_ = io_uring_sq_ready(&ring_) > 0;
    Reap();
    if (result == -EAGAIN) {
      // The kernel did not wait: without this the loop would spin.
      pollfd wake = {wake_.fd(), POLLIN, 0};
      const timespec pause = absl::ToTimespec(std::min(left, kResubmitPause));
      ppoll(&wake, 1, &pause, nullptr);
      wake_.Take();
    }
    if (!wake_.is_armed()) wake_.Take();
  }
  if (!has_unsubmitted_) Flush();  // it did not have to wait
  wake_.Clear();
}

}  // namespace

absl::StatusOr<std::unique_ptr<IoEngine>> MakeUringEngine(
    uint32_t unknown_flags, int files) {
  return UringEngine::Create(unknown_flags, files);
}

}  // namespace terrace
