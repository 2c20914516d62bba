// A Runtime of plain memory: contents live in a std::map, there are no tiers,
// transfers or threads of its own. For testing customers of the interface
// without anything of runtime/: it keeps the letter of runtime.h and
// request.h, can be told to fail any call, makes groups ready in order or in
// one drawn from a seed, and notes what a customer must not do.
//
//   MapRuntime runtime({.budget_bytes = 1 << 20}, SystemClock(), executor);
//   runtime.set_fault([](const MapRuntime::Call& call) { ... });
//
// Thread-safe as far as pins are released on any thread; the rest is one
// thread at a time. Clock and executor must outlive it.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "terrace/runtime.h"

namespace terrace {

class MapQueue;
class MapStore;

class MapRuntime final : public Runtime, public TimedRuntime {
 public:
  struct Behaviour {
    int64_t budget_bytes = 1 << 20;
    // Draws which group is ready next and when none is; none: in order, at
    // once.
    std::optional<uint64_t> seed;
    int most_pushed = INT_MAX;  // groups; one more is Unavailable
  };

  enum class CallKind : uint8_t { kPush, kReady, kBegin, kCommit };
  // `index` counts calls of all kinds and queues since the runtime was made.
  struct Call {
    int64_t index;
    CallKind kind;
    TensorId tensor;  // kPush, kReady: the first of the group
  };
  // A Status that is not OK makes the call fail with it: a kReady delivers it
  // instead of the pins, a kCommit ends its step all the same.
  using Fault = std::function<absl::Status(const Call&)>;

  MapRuntime(const Behaviour& behaviour, Clock& clock, Executor& executor);
  ~MapRuntime() override;

  void set_fault(Fault fault) { fault_ = std::move(fault); }
  // While set nothing becomes ready: Next returns DeadlineExceeded at once,
  // as if its deadline had come.
  void set_stalled(bool stalled) { stalled_ = stalled; }
  int64_t calls() const { return calls_; }

  // What customers did wrong: contents read before they were written, a read
  // pin written to, Next with every slot pinned, steps out of order.
  std::vector<std::string> violations() const;
  // How often a tensor was fetched, and written by a pin.
  int64_t reads(TensorId tensor) const;
  int64_t writes(TensorId tensor) const;
  int64_t pins() const;  // held now
  // By id; those that were unregistered have no name.
  const std::vector<TensorSpec>& tensors() const { return tensors_; }

  using Runtime::Register;
  absl::StatusOr<TensorId> Register(const TensorSpec& spec) override;
  absl::Status Unregister(TensorId tensor) override;
  using Runtime::OpenQueue;
  absl::StatusOr<std::unique_ptr<RequestQueue>> OpenQueue(
      int64_t slot_bytes, int slots, Time deadline) override;
  absl::StatusOr<Pin> Acquire(TensorId tensor, Access access,
                              Time deadline) override;
  void Prefetch(absl::Span<const TensorId>) override {}
  Stats GetStats() const override;
  absl::Status Close(Time deadline) override;
  ThreadPool thread_pool() const override { return pool_; }
  Clock& clock() override { return clock_; }

 private:
  friend class MapQueue;

  static absl::Status Closed();
  absl::Status Enter(CallKind kind, TensorId tensor);
  bool Knows(TensorId tensor) const;

  const Behaviour behaviour_;
  Clock& clock_;
  const ThreadPool pool_;
  const std::shared_ptr<MapStore> store_;
  std::vector<TensorSpec> tensors_;  // by id
  Fault fault_;
  std::atomic<bool> stalled_ = false;
  bool closed_ = false;  // or refused to, which cancels all the same
  int64_t calls_ = 0;
  std::vector<const MapQueue*> queues_;  // open
  int64_t window_bytes_ = 0;
};

}  // namespace terrace
