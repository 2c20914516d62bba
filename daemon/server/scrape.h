// A text of metrics, when the responder asks for one: jobs' runtimes are asked
// first, and what they have answered in time is in it.
//
// It belongs to the server's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/time/time.h"
#include "daemon/metrics/metrics_board.h"
#include "daemon/metrics/metrics_report.h"
#include "daemon/server/job_table.h"

namespace terrace {

class Scrape {
 public:
  // Runtimes that have not answered by then have their last numbers in it.
  static constexpr absl::Duration kPatience = absl::Milliseconds(200);

  // Between two, so that whoever asks without end costs jobs' movers little.
  static constexpr absl::Duration kPause = absl::Milliseconds(100);

  // All outlive it.
  Scrape(MetricsBoard* board, JobTable* jobs,
         std::function<MetricsReport()> report)
      : board_(*board), jobs_(*jobs), report_(std::move(report)) {}

  // Publishes what there is, without a question.
  void Publish();
  // In each turn: begins, and publishes what is due.
  void RunOnce(absl::Time now);
  // When to call RunOnce at the latest.
  absl::Time next() const { return until_; }

 private:
  MetricsBoard& board_;
  JobTable& jobs_;
  const std::function<MetricsReport()> report_;
  uint64_t answered_ = 0;
  uint64_t under_way_ = 0;                        // 0: none is
  absl::Time not_before_ = absl::InfinitePast();  // the next one
  absl::Time until_ = absl::InfiniteFuture();
};

}  // namespace terrace
