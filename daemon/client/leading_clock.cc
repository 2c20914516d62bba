#include "daemon/client/leading_clock.h"

#include "daemon/wire/ring/futex.h"
#include "daemon/wire/ring/spin.h"

namespace terrace {

NewsSleep::NewsSleep(const NewsReader& reader, RingWords& news)
    : reader_(reader), news_(&news), spins_(HasProcessorsToSpin()) {}

void NewsSleep::SetNews(RingWords& news) {
  RingWords& before = *news_.exchange(&news);
  before.wakes.fetch_add(1);
  FutexWake(before.wakes);
}

// Looked at once the count of wakes is known: what comes after that wakes.
bool NewsSleep::IsOver(const RingWords* news) const {
  return has_ended_.load() || news->written.load() != news->read.load() ||
         !reader_.hears() || news_.load() != news;
}

void NewsSleep::Wait(absl::Time deadline) {
  RingWords* const news = news_.load();
  news->thread.store(kLooks);
  const bool is_over =
      IsOver(news) || (spins_ && Spin([&] { return IsOver(news); }));
  if (!is_over) {
    news->thread.store(kSleeps);
    const uint32_t seen = news->wakes.load();
    if (!IsOver(news)) {
      FutexWait(news->wakes, seen, deadline - SystemClock().Now());
    }
  }
  news->thread.store(kNobody);
}

void NewsSleep::End() {
  if (!process_.IsCurrent()) return;
  has_ended_.store(true);
  RingWords* const news = news_.load();
  if (news->thread.load() != kSleeps) return;
  news->wakes.fetch_add(1);
  FutexWake(news->wakes);
}

bool LeadingClock::Await(Mutex& mutex, CondVar& changed,
                         absl::FunctionRef<bool()> ready, absl::Time deadline) {
  while (!ready()) {
    if (Now() >= deadline) return false;
    // Once nothing more is heard here, the relay tells all who wait.
    if (!reader_.hears() || is_led_.exchange(true)) {
      return SystemClock().Await(mutex, changed, ready, deadline);
    }
    sleep_.Begin();
    changed.SetElsewhere(&sleep_);
    mutex.Unlock();
    sleep_.Wait(deadline);
    reader_.HearSome().IgnoreError();
    mutex.Lock();
    changed.SetElsewhere(nullptr);
    is_led_ = false;
  }
  return true;
}

}  // namespace terrace
