#include "machine/profile/parallel_time.h"

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace terrace {

double TimeOnAll(Executor& executor, const std::function<void(int)>& work) {
  const int threads = executor.parallelism();
  Mutex mutex;
  CondVar changed;
  int left = threads;
  const absl::Time start = SystemClock().Now();
  for (int i = 0; i < threads; ++i) {
    executor.Run([&, i] {
      work(i);
      MutexLock lock(mutex);
      --left;
      changed.SignalAll();
    });
  }
  MutexLock lock(mutex);
  SystemClock().Await(
      mutex, changed, [&] { return left == 0; }, absl::InfiniteFuture());
  return absl::ToDoubleSeconds(SystemClock().Now() - start);
}

}  // namespace terrace
