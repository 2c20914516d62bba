#include "kernels/pool_executor.h"

#include <pthread.h>
#include <sched.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/floating_point.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/threads/own_thread.h"
#include "kernels/cpu/lanes.h"

namespace terrace {
namespace {

class PoolExecutor final : public Executor {
 public:
  explicit PoolExecutor(int threads) : lanes_(threads) {}
  ~PoolExecutor() override {
    {
      MutexLock lock(mutex_);
      closing_ = true;
    }
    changed_.SignalAll();
    for (std::thread& thread : threads_) thread.join();
    MutexLock lock(mutex_);
    TERRACE_CHECK(lanes_.empty());
  }

  absl::Status Start(int threads, absl::Span<const int> cpus) {
    threads_.reserve(static_cast<size_t>(threads));
    for (int i = 0; i < threads; ++i) {
      try {
        threads_.push_back(StartThread("terrace-exec", [this] { Work(); }));
      } catch (const std::system_error& error) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "cannot start thread ", i, " of ", threads, ": ", error.what()));
      }
      if (!cpus.empty()) {
        TERRACE_RETURN_IF_ERROR(
            Pin(threads_.back(), cpus[static_cast<size_t>(i) % cpus.size()]));
      }
    }
    return absl::OkStatus();
  }

  int parallelism() const override { return static_cast<int>(threads_.size()); }

 private:
  void Queue(std::function<void()> task, Lane lane) override {
    {
      MutexLock lock(mutex_);
      lanes_.Add(std::move(task), lane);
    }
    changed_.Signal();
  }

  static absl::Status Pin(std::thread& thread, int cpu) {
    const auto error = [cpu](const char* why) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot pin a thread to processor ", cpu, ": ", why));
    };
    if (cpu < 0 || cpu >= CPU_SETSIZE) return error("no such number");
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(cpu), &set);
    const int result =
        pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
    if (result == 0) return absl::OkStatus();
    return error(std::generic_category().message(result).c_str());
  }

  void Work() {
    const DefaultFloatingPoint mode;
    std::optional<Lane> lane;  // of the task that ended
    for (;;) {
      std::function<void()> task;
      {
        MutexLock lock(mutex_);
        if (lane) lanes_.End(*lane);
        while (lanes_.empty() && !closing_) changed_.Wait(mutex_);
        // A running task may still queue others; its own thread takes these.
        if (lanes_.empty()) return;
        lane = lanes_.Next();
        task = lanes_.Begin(*lane);
      }
      task();
    }
  }

  std::vector<std::thread> threads_;  // constant once started
  Mutex mutex_;
  CondVar changed_;
  Lanes lanes_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> MakePoolExecutor(
    int threads, absl::Span<const int> cpus) {
  if (threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("an executor needs at least one thread, not ", threads));
  }
  auto executor = std::make_unique<PoolExecutor>(threads);
  TERRACE_RETURN_IF_ERROR(executor->Start(threads, cpus));
  return executor;
}

}  // namespace terrace
