// A line of the log for each refusal, as long as they are few: somebody may
// have himself refused as often as a processor can. Those beyond are counted,
// and told with the next line.
//
// It belongs to one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/log/log.h"

namespace terrace {

class Refusals {
 public:
  // So many lines at once, and one more in each such time.
  static constexpr int kMostLines = 20;
  static constexpr absl::Duration kRefill = absl::Seconds(1);

  // `log` outlives it.
  explicit Refusals(Log* log) : log_(*log) {}

  void Note(const std::string& line, absl::StatusCode code, absl::Time now);

  // All that there were, with a line or without.
  const std::map<absl::StatusCode, int64_t>& counts() const { return counts_; }

 private:
  Log& log_;
  int lines_ = kMostLines;  // that may be written now
  absl::Time refilled_ = absl::InfinitePast();
  int64_t untold_ = 0;
  std::map<absl::StatusCode, int64_t> counts_;
};

}  // namespace terrace
