#include "daemon/server/scrape.h"

#include <optional>

namespace terrace {

void Scrape::Publish() { board_.Publish(MetricsTextOf(report_()), answered_); }

void Scrape::RunOnce(absl::Time now) {
  if (under_way_ == 0) {
    const uint64_t asked = board_.asked();
    if (asked == answered_) return;
    if (now < not_before_) {
      until_ = not_before_;
      return;
    }
    under_way_ = asked;
    until_ = now + kPatience;
    jobs_.AskStats(std::nullopt, now, absl::ZeroDuration());
  }
  if (jobs_.unanswered() > 0 && now < until_) return;
  answered_ = std::exchange(under_way_, 0);
  Publish();
  not_before_ = now + kPause;
  // Who has asked meanwhile has a text of its own.
  until_ = board_.asked() == answered_ ? absl::InfiniteFuture() : not_before_;
}

}  // namespace terrace
