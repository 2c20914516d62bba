#include "daemon/jobs/news/answer_outbox.h"

#include <utility>

#include "absl/status/status.h"

namespace terrace {
namespace {

// A queue's end here. It goes with the mover's knowledge of the queue.
class OutBytes final : public ByteSink {
 public:
  OutBytes(std::shared_ptr<AnswerOutbox> outbox, int64_t id)
      : outbox_(std::move(outbox)), id_(id) {}
  ~OutBytes() override { outbox_->Add(QueueGone{id_}); }

  void Publish(std::vector<ReadyGroup>* ready,
               std::vector<uint64_t>* recalls) override {
    if (ready->empty() && recalls->empty()) return;
    BytesNews news;
    news.queue = id_;
    news.groups.swap(*ready);
    news.recalls.swap(*recalls);
    outbox_->Add(std::move(news));
  }
  void Close() override { outbox_->Add(QueueClosed{id_}); }

 private:
  const std::shared_ptr<AnswerOutbox> outbox_;
  const int64_t id_;
};

// The same of one with slots.
class OutQueue final : public QueueSink {
 public:
  OutQueue(std::shared_ptr<AnswerOutbox> outbox, int64_t id)
      : outbox_(std::move(outbox)), id_(id) {}
  ~OutQueue() override { outbox_->Add(QueueGone{id_}); }

  // Each turn calls it while the queue waits: what the process knows already is
  // not told again. That its pins block it is true as of the last message.
  void Publish(std::vector<ReadyGroup>* ready, bool blocked_by_own_pins,
               uint64_t processed, const absl::Status& blocked_also) override {
    const bool is_news = !ready->empty() || blocked_by_own_pins != blocked_ ||
                         (blocked_ && processed != processed_);
    if (!is_news) return;
    blocked_ = blocked_by_own_pins;
    processed_ = processed;
    QueueNews news;
    news.queue = id_;
    news.groups.swap(*ready);
    news.blocked_by_own_pins = blocked_by_own_pins;
    news.processed = processed;
    news.blocked_also = blocked_also;
    outbox_->Add(std::move(news));
  }
  void Close() override { outbox_->Add(QueueClosed{id_}); }

 private:
  const std::shared_ptr<AnswerOutbox> outbox_;
  const int64_t id_;
  bool blocked_ = false;
  uint64_t processed_ = 0;
};

}  // namespace

void AnswerOutbox::Deliver(uint64_t number, Answer answer) {
  Add(AnswerNews{number, std::move(answer)});
}

std::shared_ptr<QueueSink> AnswerOutbox::OpenQueue(int64_t id) {
  return std::make_shared<OutQueue>(shared_from_this(), id);
}

std::shared_ptr<ByteSink> AnswerOutbox::OpenBytes(int64_t id) {
  return std::make_shared<OutBytes>(shared_from_this(), id);
}

std::vector<JobNewsEntry> AnswerOutbox::Take() {
  MutexLock lock(mutex_);
  is_empty_ = true;
  return std::exchange(entries_, {});
}

bool AnswerOutbox::Rest() {
  MutexLock lock(mutex_);
  rests_ = entries_.empty();
  return rests_;
}

void AnswerOutbox::Stir() {
  MutexLock lock(mutex_);
  rests_ = false;
}

void AnswerOutbox::Add(JobNewsEntry entry) {
  {
    MutexLock lock(mutex_);
    entries_.push_back(std::move(entry));
    is_empty_ = false;
    if (!std::exchange(rests_, false)) return;
  }
  news_->Set();
}

}  // namespace terrace
