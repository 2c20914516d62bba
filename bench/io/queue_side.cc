#include "bench/io/queue_side.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "bench/harness.h"

namespace terrace::bench {
namespace {

// Bulk has the tags below.
constexpr uint64_t kDemandTags = uint64_t{1} << 32;

}  // namespace

QueueSide::QueueSide(std::unique_ptr<IoEngine> engine)
    : io_(std::move(engine), SystemClock()) {}

void QueueSide::RegisterArena(absl::Span<std::byte> arena) {
  io_.RegisterArena(arena);
}

absl::StatusOr<int> QueueSide::AddPath(int fd, const IoQueueOptions& options) {
  return io_.AddPath(absl::StrCat("file ", fd), fd, options);
}

absl::StatusOr<int64_t> QueueSide::Run(const Load& load,
                                       absl::Span<std::byte> memory,
                                       const std::vector<int>& paths,
                                       const Order& order) {
  LoadCursor cursor(load, memory, kTransfer);
  int bulk = 0;
  int64_t moved = 0;
  bool has_more = true;
  uint64_t tag = 0;
  demands_sent_ = 0;
  next_demand_ = Seconds();
  const double end = order.most_seconds > 0
                         ? Seconds() + order.most_seconds
                         : std::numeric_limits<double>::max();
  while (has_more || demands_sent_ < order.demands || io_.pending() > 0) {
    IoRequest request;
    while (has_more && bulk < order.ahead) {
      has_more = Seconds() < end && cursor.Next(&request);
      if (!has_more) break;
      const bool is_read = request.direction == IoDirection::kRead;
      io_.Enqueue(
          paths[request.file],
          {request.direction,
           is_read || order.fifo ? IoClass::kPrefetch : IoClass::kWriteBack,
           request.data, request.offset, request.size_bytes, ++tag});
      moved += request.size_bytes;
      ++bulk;
    }
    SendDemands(paths[0], order);
    // Returns at once where the enqueued has room in flight.
    if (io_.pending() > 0 || demands_sent_ < order.demands) {
      io_.Wait(demands_sent_ < order.demands
                   ? SystemClock().Now() +
                         absl::Seconds(next_demand_ - Seconds())
                   : absl::InfiniteFuture());
    }
    TERRACE_ASSIGN_OR_RETURN(const int ended, Reap());
    bulk -= ended;
  }
  return moved;
}

void QueueSide::SendDemands(int path, const Order& order) {
  const auto blocks = static_cast<uint64_t>(order.demand_span / kDemand);
  while (demands_sent_ < order.demands && Seconds() >= next_demand_) {
    const uint64_t tag = kDemandTags + static_cast<uint64_t>(demands_sent_);
    io_.Enqueue(
        path,
        {IoDirection::kRead, order.fifo ? IoClass::kPrefetch : IoClass::kDemand,
         order.demand_memory,
         static_cast<int64_t>(random_() % blocks) * kDemand, kDemand, tag});
    // From when it was due, so that a late loop is not left out.
    demand_due_[tag] = next_demand_;
    next_demand_ += order.demand_period;
    ++demands_sent_;
  }
}

// How many bulk transfers ended.
absl::StatusOr<int> QueueSide::Reap() {
  std::vector<Completion> ended;
  io_.Poll(&ended);
  int bulk = 0;
  for (const Completion& completion : ended) {
    if (!completion.status.ok()) return completion.status;
    const auto demand = demand_due_.find(completion.tag);
    if (demand == demand_due_.end()) {
      ++bulk;
    } else {
      latencies_.push_back(Seconds() - demand->second);
      demand_due_.erase(demand);
    }
  }
  return bulk;
}

}  // namespace terrace::bench
