// The thread that asks a daemon's first loops whether they turn: these ask the
// others, which they wake. It takes no lock that one of them can hold, and that
// it turns itself is said by the time of its last turn. It alone writes the
// pages by which processes of jobs learn which loops have stopped.
//
//   auto watch = LoopWatch::Start(table, pages, {{{&heartbeat}, wake}});
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/threads/heartbeat.h"
#include "daemon/watch/loop_pages.h"
#include "daemon/watch/loop_table.h"
#include "daemon/wire/wake_event.h"

namespace terrace {

class LoopWatch {
 public:
  // How often it asks: with kMostSilence a loop that stops is found within
  // 1.8 s.
  static constexpr absl::Duration kPeriod = absl::Milliseconds(500);

  // Loops that are woken together. They outlive the watch; `wake` takes no lock
  // and allocates nothing.
  struct Asked {
    std::vector<Heartbeat*> heartbeats;
    std::function<void()> wake;
  };

  // ResourceExhausted: there is no descriptor or thread.
  static absl::StatusOr<std::unique_ptr<LoopWatch>> Start(
      std::shared_ptr<LoopTable> table, std::shared_ptr<LoopPages> pages,
      std::vector<Asked> asked);
  // Waits for its thread.
  ~LoopWatch();
  LoopWatch(const LoopWatch&) = delete;
  LoopWatch& operator=(const LoopWatch&) = delete;

  // Since its last turn, beyond the time between two. Thread-safe, without a
  // lock.
  absl::Duration SilenceAt(absl::Time now) const;
  bool HasStopped(absl::Time now) const {
    return SilenceAt(now) >= LoopTable::kMostSilence;
  }

 private:
  LoopWatch(std::shared_ptr<LoopTable> table, std::shared_ptr<LoopPages> pages,
            std::vector<Asked> asked, WakeEvent end);
  void Run();
  void Turn(absl::Time now);

  const std::shared_ptr<LoopTable> table_;
  const std::shared_ptr<LoopPages> pages_;
  const std::vector<Asked> asked_;
  const WakeEvent end_;
  std::atomic<bool> ends_ = false;
  std::atomic<int64_t> turned_at_;  // nanoseconds of SystemClock()
  std::thread thread_;              // last: it uses all of the above
};

}  // namespace terrace
