// The clock that a connected process's threads wait by. One of those that wait
// at its ports leads: it sleeps at the daemon's own word, in the ring, and
// hears the news itself, so that an answer wakes the thread that waits for it
// and nobody else. The others sleep as by any clock, and are told by whoever
// hears: the one that leads, or the relay, where none does.
//
// Thread-safe; it is the machine's time. The reader outlives it, and so does
// each ring that it was told of.
#pragma once

#include <atomic>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/process.h"
#include "daemon/client/news_reader.h"
#include "daemon/wire/ring/packet_ring.h"

namespace terrace {

// Where the thread that leads sleeps. One thread at a time waits.
class NewsSleep final : public Sleep {
 public:
  NewsSleep(const NewsReader& reader, RingWords& news);

  // The news come there from here on, or, where that is what it was, no more:
  // who sleeps wakes. One thread's.
  void SetNews(RingWords& news);
  // An End counts from here on.
  void Begin() { has_ended_ = false; }
  // Until there is news, an End, or `deadline`, which is SystemClock()'s; it
  // may end early.
  void Wait(absl::Time deadline);
  void End() override;

 private:
  bool IsOver(const RingWords* news) const;

  const Process process_;  // a child has no such ring
  const NewsReader& reader_;
  std::atomic<RingWords*> news_;
  const bool spins_;
  std::atomic<bool> has_ended_ = false;
};

class LeadingClock final : public Clock {
 public:
  LeadingClock(NewsReader& reader, RingWords& news)
      : reader_(reader), sleep_(reader, news) {}

  // As the sleep's. Who leads hears that the reader has paused by the ring that
  // it has.
  void SetNews(RingWords& news) { sleep_.SetNews(news); }

  absl::Time Now() override { return SystemClock().Now(); }
  absl::Time WallNow() override { return SystemClock().WallNow(); }
  bool Await(Mutex& mutex, CondVar& changed, absl::FunctionRef<bool()> ready,
             absl::Time deadline) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Who may wait for ever does not lead.
  bool AwaitIdly(Mutex& mutex, CondVar& changed,
                 absl::FunctionRef<bool()> ready, absl::Time deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return SystemClock().Await(mutex, changed, ready, deadline);
  }

 private:
  NewsReader& reader_;
  NewsSleep sleep_;
  std::atomic<bool> is_led_ = false;
};

}  // namespace terrace
