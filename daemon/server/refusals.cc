#include "daemon/server/refusals.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace terrace {

void Refusals::Note(const std::string& line, absl::StatusCode code,
                    absl::Time now) {
  ++counts_[code];
  if (now - refilled_ >= kMostLines * kRefill) {
    lines_ = kMostLines;
    refilled_ = now;
  } else if (now - refilled_ >= kRefill) {
    const int64_t more = (now - refilled_) / kRefill;
    lines_ = static_cast<int>(std::min<int64_t>(kMostLines, lines_ + more));
    refilled_ += more * kRefill;
  }
  if (lines_ == 0) {
    ++untold_;
    return;
  }
  --lines_;
  const int64_t untold = std::exchange(untold_, 0);
  log_.Warn(untold == 0
                ? line
                : absl::StrCat(line, "; and ", untold, " more before it"));
}

}  // namespace terrace
