#include "aio/queue/in_flight_limits.h"

#include <utility>

namespace terrace {
namespace {

// Longer than a step takes between two of its reads, as a rule; a limit needs
// tens of milliseconds to adapt.
constexpr absl::Duration kLately = absl::Seconds(1);

}  // namespace

void InFlightLimits::OnClass(absl::Time now, IoClass io_class) {
  if (io_class == IoClass::kDemand) last_demand_ = now;
  if (io_class == IoClass::kForeseen) last_foreseen_ = now;
  Choose(now);
}

void InFlightLimits::OnAnswer(absl::Time now, int64_t bytes, bool is_read,
                              bool has_more) {
  holding_->OnAnswer(now, bytes, is_read, has_more);
  Choose(now);
}

void InFlightLimits::Choose(absl::Time now) {
  const bool is_foreseen =
      now - last_foreseen_ <= kLately && now - last_demand_ > kLately;
  InFlightLimit* const chosen = is_foreseen ? &for_throughput_ : &for_latency_;
  if (chosen == holding_) return;
  chosen->Resume(*std::exchange(holding_, chosen));
}

}  // namespace terrace
