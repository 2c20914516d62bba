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
#include "base/threads/own_loop.h"
#include "base/threads/own_thread.h"
#include "kernels/cpu/lanes.h"

namespace terrace {
namespace {

class PoolExecutor final : public Executor {
 public:
  PoolExecutor(int threads, std::shared_ptr<PoolLoops> loops)
      : loops_(std::move(loops)), lanes_(threads) {}
  ~PoolExecutor() override {
    {
      MutexLock lock(mutex_);
      closing_ = true;
    }
    loops_->wake.WakeAll();
    for (std::thread& thread : threads_) thread.join();
    MutexLock lock(mutex_);
    TERRACE_CHECK(lanes_.empty());
  }

  absl::Status Start(int threads, absl::Span<const int> cpus) {
    threads_.reserve(static_cast<size_t>(threads));
    for (int i = 0; i < threads; ++i) {
      try {
        threads_.push_back(StartThread(
            "terrace-exec", [this, heartbeat = loops_->HeartbeatOf(
                                       threads_.size())] { Work(heartbeat); }));
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
    loops_->wake.WakeOne();
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

  void Work(Heartbeat* heartbeat) {
    const DefaultFloatingPoint mode;
    const OwnLoop loop(heartbeat);
    std::optional<Lane> lane;  // of the task that ended
    for (;;) {
      OwnLoop::Beat();
      // What is queued from here on changes the word.
      const uint32_t seen = loops_->wake.Look();
      std::function<void()> task;
      {
        MutexLock lock(mutex_);
        if (lane) lanes_.End(*lane);
        lane.reset();
        if (!lanes_.empty()) {
          lane = lanes_.Next();
          task = lanes_.Begin(*lane);
        } else if (closing_) {
          // A running task may still queue others; its own thread takes these.
          return;
        }
      }
      if (lane) {
        task();
      } else {
        loops_->wake.Await(seen);
      }
    }
  }

  const std::shared_ptr<PoolLoops> loops_;
  std::vector<std::thread> threads_;  // constant once started
  Mutex mutex_;
  Lanes lanes_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> MakePoolExecutor(
    int threads, absl::Span<const int> cpus, std::shared_ptr<PoolLoops> loops) {
  if (threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("an executor needs at least one thread, not ", threads));
  }
  if (loops == nullptr) loops = std::make_shared<PoolLoops>();
  auto executor = std::make_unique<PoolExecutor>(threads, std::move(loops));
  TERRACE_RETURN_IF_ERROR(executor->Start(threads, cpus));
  return executor;
}

}  // namespace terrace
