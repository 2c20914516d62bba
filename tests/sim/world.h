// The world of a simulation: the production runtime, unmodified, turned by
// hand over devices in memory, in virtual time.
//
//   World world({.seed = 7, .budget_bytes = 1 << 20});
//   auto queue = world.runtime().OpenQueue(...);
//   world.clock().Advance();   // or any call that waits
//
// Mover, residency table, queues, placement and eviction are production's;
// engines are memory, below it faults by a seed, above it a pace; tasks cost
// virtual time. After steps of the mover its invariants are checked, after
// every one unless the options say otherwise.
// One thread. Everything depends on the seed alone.
//
// Behind a program's door (tests/support/door/runtime_door.h) the same is in
// real time, with threads, and over disks alone: its customers are drawn from
// the seed, and what they meet is not.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "aio/engine.h"
#include "runtime/local_runtime.h"
#include "runtime/motion/transcript.h"
#include "tests/support/door/runtime_door.h"
#include "tests/support/fault_engine.h"
#include "tests/support/inline_executor.h"
#include "tests/support/manual_clock.h"
#include "tests/support/medium/fake_hbm.h"
#include "tests/support/medium/far_memory.h"
#include "tests/support/medium/paced_medium.h"
#include "tests/support/pace_board.h"
#include "tests/support/virtual_threads.h"

namespace terrace {

// Tasks run in virtual time on `parallelism` servers; which of those waiting
// is next depends on the seed. `clock` must outlive it.
class VirtualExecutor final : public Executor {
 public:
  // Each task costs `cost`, or, with `spread`, up to that much more.
  VirtualExecutor(int parallelism, absl::Duration cost, absl::Duration spread,
                  uint64_t seed, VirtualClock& clock)
      : clock_(clock),
        cost_(cost),
        spread_(spread),
        random_(seed),
        tasks_(parallelism, seed),
        busy_until_(static_cast<size_t>(parallelism), absl::InfinitePast()) {}

  int parallelism() const override { return tasks_.parallelism(); }
  size_t waiting() const { return tasks_.waiting(); }

 private:
  void Queue(std::function<void()> task, Lane lane) override;

  VirtualClock& clock_;
  const absl::Duration cost_;
  const absl::Duration spread_;
  std::mt19937_64 random_;
  InlineExecutor tasks_;
  std::vector<absl::Time> busy_until_;  // per server
};

struct WorldOptions {
  uint64_t seed = 1;
  int64_t budget_bytes = 1 << 20;
  int paths = 2;
  int64_t path_bytes = 16 << 20;
  std::vector<int64_t> path_budgets;      // of each path; empty: path_bytes
  int64_t hbm_bytes = 0;                  // of a device; 0: there is none
  int devices = 1;                        // then: so many, of that each
  std::vector<int64_t> other_memories;    // budgets, beside the first's
  std::vector<TierSpec> mapped;           // above the paths, of plain bytes
  PaceOptions pace = {1 << 30, 1 << 30};  // of each path; see SetPace
  // Tasks have that many threads in virtual time, and copies of mapped tiers
  // take what their pace says. 0: copies take a task's time alone.
  int threads = 0;
  EvictionKind eviction = EvictionKind::kNextUse;
  bool prefetch = true;
  int parallelism = 2;
  absl::Duration task_cost = absl::Microseconds(10);
  absl::Duration task_spread = absl::ZeroDuration();
  absl::Duration io_timeout = absl::Seconds(60);
  IoQueueOptions io;
  // Steps of the mover after each of which its invariants are checked: they
  // are over all tensors.
  int64_t check_every = 1;
  Transcript* transcript = nullptr;  // outlives the world
};

// Whether worlds are in real time, so that a test has few of them.
inline bool InRealTime() { return runtime_door != nullptr; }

class World {
 public:
  explicit World(const WorldOptions& options);
  // Clears the faults and closes; what was made from the runtime must be gone.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Runtime& runtime() { return *runtime_; }
  VirtualClock& clock() { return clock_; }
  // As deadlines are given.
  absl::Time Now();
  // So much time passes, or as much of it as comes before the next event.
  void Pass(absl::Duration duration);
  void PassToEvent(absl::Duration most);
  FaultPlan& faults() { return *faults_; }
  // Of disks and mapped tiers.
  void ClearFaults();
  // The first; null: there is no device.
  FakeHbm* hbm() { return hbms_.empty() ? nullptr : hbms_.front().get(); }
  // By text, where there are several of a kind; else none.
  const std::vector<std::string>& working_tiers() const {
    return working_tiers_;
  }
  // Of the mapped tiers, in their order.
  const std::vector<std::shared_ptr<FarMemory>>& mapped() { return mapped_; }
  // Of what that path is asked from here on.
  void SetPace(int path, const PaceOptions& pace) { paces_->Set(path, pace); }
  // Tiers of memory that have a pace: all with `threads`, else none.
  size_t paced_tiers() const { return paced_.size(); }
  // Of mapped tier k, the device's after the last, with `threads` alone; 0, as
  // at the start: not paced.
  void SetMappedPace(int k, const PaceOptions& pace) {
    paced_.at(static_cast<size_t>(k))->Set(pace);
  }

  // The first invariant that did not hold after a step of the mover.
  const absl::Status& broken() const { return broken_; }
  int64_t mover_steps() const { return mover_steps_; }

 private:
  std::unique_ptr<Executor> MakeExecutor(const WorldOptions& options);
  void AddPaths(const WorldOptions& options, LocalRuntimeParts* parts);
  void AddDevice(const WorldOptions& options, LocalRuntimeParts* parts);
  void AddMemory(int64_t budget_bytes, EvictionKind eviction,
                 LocalRuntimeParts* parts);
  void AddMapped(const TierSpec& tier, LocalRuntimeParts* parts);
  std::shared_ptr<PacedMedium> Paced(std::shared_ptr<Medium> medium);
  size_t waiting_tasks() const {
    return threads_ != nullptr ? threads_->waiting() : executor_->waiting();
  }
  absl::Time Turn();

  VirtualClock clock_;
  const std::shared_ptr<FaultPlan> faults_;
  const std::shared_ptr<PaceBoard> paces_;
  // The runtime's executor is one of these.
  VirtualExecutor* executor_ = nullptr;
  VirtualThreads* threads_ = nullptr;
  std::vector<std::unique_ptr<FakeHbm>> hbms_;
  std::vector<std::string> working_tiers_;
  std::vector<std::shared_ptr<FarMemory>> mapped_;
  // Of those, then the device's; or none.
  std::vector<std::shared_ptr<PacedMedium>> paced_;
  std::vector<InlineExecutor*> background_;  // per tier below, the runtime's
  ReachedRuntime runtime_;
  Mover* mover_ = nullptr;  // in virtual time
  int step_ = -1;
  const int64_t check_every_;
  absl::Status broken_;
  int64_t mover_steps_ = 0;
};

}  // namespace terrace
