// Threads that share a link in real time: what is in flight stays within the
// limit, who waits is woken, and each has its share in the end.
#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "daemon/links/shared_link.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr int64_t kSmallPiece = 64 << 10;
constexpr int kPiecesEach = 4000;  // of each

// As a queue's thread: asks, sleeps until it is woken or its time has come, and
// gives back what it has taken.
class Customer {
 public:
  Customer(SharedLink& link, const SharedLink::Job& job,
           std::atomic<int64_t>* in_flight)
      : in_flight_(*in_flight), share_(link.Join(job, {}, [this] { Wake(); })) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Customer() { thread_.join(); }

  int64_t most_seen() const { return most_seen_; }

 private:
  void Wake() {
    MutexLock lock(mutex_);
    is_woken_ = true;
    changed_.Signal();
  }
  void Await() {
    const absl::Duration most = share_->NextEvent() - SystemClock().Now();
    MutexLock lock(mutex_);
    if (!is_woken_ && most > absl::ZeroDuration()) {
      changed_.WaitFor(mutex_, most);
    }
    is_woken_ = false;
  }
  void Run() {
    for (int i = 0; i < kPiecesEach; ++i) {
      const IoDirection direction =
          i % 2 == 0 ? IoDirection::kRead : IoDirection::kWrite;
      const LinkPiece piece = {direction, IoClass::kDemand, kSmallPiece};
      while (!share_->Take(piece)) Await();
      const int64_t now = in_flight_ += kSmallPiece;
      most_seen_ = std::max(most_seen_, now);
      in_flight_ -= kSmallPiece;
      share_->Give(direction, kSmallPiece);
      if (i % 100 == 0) share_->Rest();
    }
    share_.reset();
  }

  std::atomic<int64_t>& in_flight_;
  Mutex mutex_;
  CondVar changed_;
  bool is_woken_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t most_seen_ = 0;
  std::unique_ptr<LinkShare> share_;
  std::thread thread_;
};

TEST(SharedLinkThreads, NobodyWaitsForEverAndTheLimitHolds) {
  IoQueueOptions options;
  options.in_flight_bytes = 2 * kSmallPiece;
  options.adapts = false;
  SharedLink link(options, SystemClock());
  std::atomic<int64_t> in_flight = 0;
  std::vector<std::unique_ptr<Customer>> all;
  for (int i = 0; i < 6; ++i) {
    all.push_back(std::make_unique<Customer>(
        link, SharedLink::Job{static_cast<uint32_t>(i % 2), "a"}, &in_flight));
  }
  for (int i = 0; i < 100; ++i) {
    link.SetWeights([i](const SharedLink::Job& job) {
      return SharedLink::Weights{1 + i % 3, static_cast<int>(1 + job.user)};
    });
    EXPECT_LE(link.use().in_flight_bytes, options.in_flight_bytes);
  }
  all.clear();
  EXPECT_EQ(link.use().in_flight_bytes, 0);
}

}  // namespace
}  // namespace terrace
