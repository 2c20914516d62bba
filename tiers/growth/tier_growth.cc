#include "tiers/growth/tier_growth.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"

namespace terrace {

void TierGrowth::Begin(const Growth& growth, bool must, int64_t progress) {
  growing_ = true;
  late_ = false;
  must_ = must;
  bytes_ = growth.bytes;
  since_ = clock_->Now();
  watch_.Expect(patience_);
  watch_.Begin(since_);
  progress_ = progress;
}

absl::Status TierGrowth::Check(absl::Time now, int64_t progress,
                               const std::string& name) {
  if (!growing_ || late_) return absl::OkStatus();
  watch_.Look(now);
  since_ = std::max(since_, watch_.since());
  if (progress != progress_) {
    progress_ = progress;
    since_ = now;
    return absl::OkStatus();
  }
  if (now < since_ + patience_) return absl::OkStatus();
  late_ = true;
  return WithIoFault(absl::DeadlineExceededError(absl::StrCat(
                         name, ": growing by ", bytes_, " bytes: no answer ",
                         "for ", absl::FormatDuration(now - since_))),
                     {.path = name});
}

absl::Time TierGrowth::NextEvent() const {
  if (!growing_ || late_) return absl::InfiniteFuture();
  return std::min(since_ + patience_, watch_.next_look());
}

GrowthAnswer TierGrowth::End(const absl::Status& how) {
  growing_ = false;
  refused_ = !how.ok();
  return {how, std::exchange(late_, false), must_};
}

}  // namespace terrace
