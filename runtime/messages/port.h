// A client's end: what the mover answers it, and the ports of its queues.
//
//   Question question(*port);
//   request.id = question.id();
//   if (!inbox->Post(std::move(request))) return inbox->Closed();
//   absl::StatusOr<OpenedQueue> opened = question.Await<OpenedQueue>(clock);
//
// Thread-safe: each thread waits for its own question, and is woken by that
// question's answer alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "runtime/messages/answer_sinks.h"
#include "runtime/messages/answers.h"
#include "runtime/messages/byte_port.h"
#include "runtime/messages/queue_port.h"
#include "runtime/messages/request_id.h"
#include "terrace/pin.h"

namespace terrace {

class Question;

class Port final : public ClientSink {
 public:
  // Pins that nobody takes from it end at `pins`.
  Port(ClientId client, std::shared_ptr<PinOwner> pins)
      : client_(client), pins_(std::move(pins)) {}

  ClientId client() const { return client_; }

  // The first answer counts; nobody hears of one whose asker is gone.
  void Deliver(uint64_t number, Answer answer) override;
  std::shared_ptr<QueueSink> OpenQueue(int64_t id) override;
  // The answer to all that have none.
  void DeliverToAll(const absl::Status& why);
  // Client: the port of a queue that it was told of, once; null: of no such
  // queue.
  std::shared_ptr<QueuePort> TakeQueue(int64_t id);
  // The same of a queue of bytes.
  std::shared_ptr<ByteSink> OpenBytes(int64_t id) override;
  std::shared_ptr<BytePort> TakeBytes(int64_t id);

 private:
  friend class Question;

  uint64_t Add(Question* question);
  void Remove(uint64_t number);
  std::optional<Answer> Await(Question& question, Clock& clock,
                              absl::Time deadline);

  const ClientId client_;
  const std::shared_ptr<PinOwner> pins_;
  Mutex mutex_;
  uint64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, Question*> questions_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<int64_t, std::shared_ptr<QueuePort>> untaken_
      ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<int64_t, std::shared_ptr<BytePort>> untaken_bytes_
      ABSL_GUARDED_BY(mutex_);
};

// A request that its asker waits for the answer to. One thread at a time; the
// port outlives it.
class Question {
 public:
  explicit Question(Port& port)
      : port_(port), id_{port.client(), port.Add(this)} {}
  ~Question() { port_.Remove(id_.number); }
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;

  RequestId id() const { return id_; }

  // Once, after the request was posted. Ends when the mover answers: it answers
  // every request, at the latest when it closes.
  template <typename T>
  absl::StatusOr<T> Await(Clock& clock) {
    Answer answer = *port_.Await(*this, clock, absl::InfiniteFuture());
    if (auto* error = std::get_if<absl::Status>(&answer)) {
      return std::move(*error);
    }
    TERRACE_CHECK(std::holds_alternative<T>(answer));
    return std::get<T>(std::move(answer));
  }
  absl::Status AwaitStatus(Clock& clock) {
    return *AwaitStatus(clock, absl::InfiniteFuture());
  }
  // Once; none: there was no answer by the deadline.
  std::optional<absl::Status> AwaitStatus(Clock& clock, absl::Time deadline) {
    std::optional<Answer> answer = port_.Await(*this, clock, deadline);
    if (!answer.has_value()) return std::nullopt;
    TERRACE_CHECK(std::holds_alternative<absl::Status>(*answer));
    return std::get<absl::Status>(*std::move(answer));
  }

 private:
  friend class Port;

  Port& port_;
  // Of the port, whose mutex guards them.
  CondVar answered_;
  std::optional<Answer> answer_;
  const RequestId id_;  // last: the port knows the question from here on
};

}  // namespace terrace
