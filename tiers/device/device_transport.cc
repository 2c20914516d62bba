#include "tiers/device/device_transport.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/check.h"
#include "base/mutex.h"
#include "tiers/left_behind.h"

namespace terrace {

// What the device calls, which may be after the transport's end.
class DeviceTransport::Waker {
 public:
  explicit Waker(std::function<void()> wake) : wake_(std::move(wake)) {}

  // The lock is held meanwhile, so that none is under way after Shut.
  void Wake() {
    MutexLock lock(mutex_);
    if (!shut_) wake_();
  }
  void Shut() {
    MutexLock lock(mutex_);
    shut_ = true;
  }

 private:
  const std::function<void()> wake_;
  Mutex mutex_;
  bool shut_ ABSL_GUARDED_BY(mutex_) = false;
};

DeviceTransport::DeviceTransport(TierId tier,
                                 std::shared_ptr<DeviceSpace> space,
                                 Clock& clock, std::function<void()> wake,
                                 const DeviceQueueOptions& options)
    : tier_(tier),
      space_(std::move(space)),
      clock_(clock),
      in_flight_limit_bytes_(2 * options.most_pieces * options.piece_bytes),
      waker_(std::make_shared<Waker>(std::move(wake))),
      from_device_(*space_, IoDirection::kRead, options, meter_, clock,
                   [waker = waker_] { waker->Wake(); }),
      to_device_(*space_, IoDirection::kWrite, options, meter_, clock,
                 [waker = waker_] { waker->Wake(); }) {
  TERRACE_CHECK(tier != kNoTier && tier != kDramTier);
}

DeviceTransport::~DeviceTransport() {
  waker_->Shut();
  if (from_device_.has_copies() || to_device_.has_copies()) {
    LeaveBehind(space_);
  }
}

void DeviceTransport::Begin(const Move& move) {
  QueueOf(move.edge).Begin(move);
}

void DeviceTransport::Cancel(Edge edge, uint64_t tag) {
  QueueOf(edge).Cancel(tag);
}

void DeviceTransport::Promote(Edge edge, uint64_t tag, IoClass io_class) {
  QueueOf(edge).Promote(tag, io_class);
}

void DeviceTransport::Poll(std::vector<Moved>* moved) {
  from_device_.Poll(moved);
  to_device_.Poll(moved);
}

int64_t DeviceTransport::pending() const {
  return from_device_.pending() + to_device_.pending();
}

absl::Time DeviceTransport::NextEvent() const {
  return std::min(from_device_.NextEvent(), to_device_.NextEvent());
}

IoPathStats DeviceTransport::stats() const {
  IoPathStats stats = meter_.stats(clock_.Now());
  stats.in_flight_limit_bytes = in_flight_limit_bytes_;
  return stats;
}

DeviceQueue& DeviceTransport::QueueOf(Edge edge) {
  TERRACE_CHECK(FarEnd(edge) == tier_ && IsMemory(NearEnd(edge)));
  return IsFromFar(edge) ? from_device_ : to_device_;
}

}  // namespace terrace
