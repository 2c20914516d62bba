#include "runtime/messages/port.h"

#include <utility>

namespace terrace {
namespace {

template <typename Map>
typename Map::mapped_type Take(Map& untaken, int64_t id) {
  const auto found = untaken.find(id);
  if (found == untaken.end()) return nullptr;
  auto port = std::move(found->second);
  untaken.erase(found);
  return port;
}

}  // namespace

void Port::Deliver(uint64_t number, Answer answer) {
  MutexLock lock(mutex_);
  const auto found = questions_.find(number);
  if (found == questions_.end()) return;
  Question& question = *found->second;
  if (question.answer_.has_value()) return;
  question.answer_.emplace(std::move(answer));
  question.answered_.SignalAll();
}

void Port::DeliverToAll(const absl::Status& why) {
  MutexLock lock(mutex_);
  for (const auto& [number, question] : questions_) {
    if (question->answer_.has_value()) continue;
    question->answer_.emplace(why);
    question->answered_.SignalAll();
  }
}

std::shared_ptr<QueueSink> Port::OpenQueue(int64_t id) {
  auto port = std::make_shared<QueuePort>(pins_);
  MutexLock lock(mutex_);
  untaken_[id] = port;
  return port;
}

std::shared_ptr<QueuePort> Port::TakeQueue(int64_t id) {
  MutexLock lock(mutex_);
  return Take(untaken_, id);
}

std::shared_ptr<ByteSink> Port::OpenBytes(int64_t id) {
  auto port = std::make_shared<BytePort>(pins_);
  MutexLock lock(mutex_);
  untaken_bytes_[id] = port;
  return port;
}

std::shared_ptr<BytePort> Port::TakeBytes(int64_t id) {
  MutexLock lock(mutex_);
  return Take(untaken_bytes_, id);
}

uint64_t Port::Add(Question* question) {
  MutexLock lock(mutex_);
  const uint64_t number = ++last_number_;
  questions_.emplace(number, question);
  return number;
}

void Port::Remove(uint64_t number) {
  MutexLock lock(mutex_);
  questions_.erase(number);
}

std::optional<Answer> Port::Await(Question& question, Clock& clock,
                                  absl::Time deadline) {
  MutexLock lock(mutex_);
  clock.Await(
      mutex_, question.answered_,
      [&question] { return question.answer_.has_value(); }, deadline);
  return std::move(question.answer_);
}

}  // namespace terrace
