// What a runtime says of itself, for a thread that must not wait for it: one
// thread has it asked, the mover answers into a box, and any thread takes the
// answer out.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "runtime/local_runtime.h"
#include "runtime/messages/answer_sinks.h"
#include "terrace/stats.h"

namespace terrace {

// The newest answer. Thread-safe, without a lock.
class StatsBox {
 public:
  // `on_answer` is called on the mover's thread, and does not block.
  explicit StatsBox(std::function<void()> on_answer)
      : on_answer_(std::move(on_answer)) {}
  ~StatsBox() { delete newest_.load(); }
  StatsBox(const StatsBox&) = delete;
  StatsBox& operator=(const StatsBox&) = delete;

  void Put(Stats stats) {
    delete newest_.exchange(new Stats(std::move(stats)));
    on_answer_();
  }
  // Null: there is none that was not taken.
  std::unique_ptr<Stats> Take() {
    return std::unique_ptr<Stats>(newest_.exchange(nullptr));
  }

 private:
  const std::function<void()> on_answer_;
  std::atomic<Stats*> newest_ = nullptr;
};

// A client of the runtime that asks for nothing else. Ask() is one thread's.
class StatsProbe final : public ClientSink {
 public:
  // `runtime` outlives the probe.
  static std::shared_ptr<StatsProbe> Join(LocalRuntime& runtime,
                                          std::shared_ptr<StatsBox> box);
  void Ask();

  void Deliver(uint64_t number, Answer answer) override;
  // It opens none.
  std::shared_ptr<QueueSink> OpenQueue(int64_t /*id*/) override {
    return nullptr;
  }
  std::shared_ptr<ByteSink> OpenBytes(int64_t /*id*/) override {
    return nullptr;
  }

 private:
  StatsProbe(LocalRuntime& runtime, std::shared_ptr<StatsBox> box)
      : runtime_(runtime), box_(std::move(box)) {}

  LocalRuntime& runtime_;
  const std::shared_ptr<StatsBox> box_;
  ClientId id_ = kLocalClient;
  uint64_t number_ = 0;
};

}  // namespace terrace
