// What a runtime says of itself, for a thread that must not wait for it: one
// thread has it asked, the mover answers into a box, and any thread takes the
// answer out.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "runtime/local_runtime.h"
#include "runtime/messages/answer_sinks.h"
#include "terrace/stats.h"

namespace terrace {

// The newest answer. Thread-safe, without a lock.
template <typename Value>
class AnswerBox {
 public:
  // `on_answer` is called by who turns the mover, and does not block.
  explicit AnswerBox(std::function<void()> on_answer)
      : on_answer_(std::move(on_answer)) {}
  ~AnswerBox() { delete newest_.load(); }
  AnswerBox(const AnswerBox&) = delete;
  AnswerBox& operator=(const AnswerBox&) = delete;

  void Put(Value value) {
    delete newest_.exchange(new Value(std::move(value)));
    on_answer_();
  }
  // Null: there is none that was not taken.
  std::unique_ptr<Value> Take() {
    return std::unique_ptr<Value>(newest_.exchange(nullptr));
  }

 private:
  const std::function<void()> on_answer_;
  std::atomic<Value*> newest_ = nullptr;
};

// Those of one runtime.
struct AnswerBoxes {
  explicit AnswerBoxes(const std::function<void()>& on_answer)
      : stats(on_answer),
        pages(on_answer),
        evicted(on_answer),
        lent(on_answer) {}
  AnswerBox<Stats> stats;
  AnswerBox<TensorPage> pages;
  AnswerBox<Evicted> evicted;
  AnswerBox<Lent> lent;
};

// As EvictRequest has it.
struct EvictionOrder {
  uint64_t ticket = 0;
  absl::Duration patience;
};

// As LendRequest has it.
struct LendOrder {
  uint64_t ticket = 0;
  int64_t bytes = 0;
  absl::Duration patience;
};

// A client of the runtime that asks for nothing else. Asking is one
// thread's.
class RuntimeProbe final : public ClientSink {
 public:
  // `runtime` outlives the probe.
  static std::shared_ptr<RuntimeProbe> Join(LocalRuntime& runtime,
                                            std::shared_ptr<AnswerBoxes> boxes);
  void AskStats();
  void AskPage(TensorId after);
  void Evict(const EvictionOrder& order);
  void Lend(const LendOrder& order);

  void Deliver(uint64_t number, Answer answer) override;
  // It opens none.
  std::shared_ptr<QueueSink> OpenQueue(int64_t /*id*/) override {
    return nullptr;
  }
  std::shared_ptr<ByteSink> OpenBytes(int64_t /*id*/) override {
    return nullptr;
  }

 private:
  RuntimeProbe(LocalRuntime& runtime, std::shared_ptr<AnswerBoxes> boxes)
      : runtime_(runtime), boxes_(std::move(boxes)) {}

  LocalRuntime& runtime_;
  const std::shared_ptr<AnswerBoxes> boxes_;
  ClientId id_ = kLocalClient;
  uint64_t number_ = 0;
};

}  // namespace terrace
