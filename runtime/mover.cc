#include "runtime/mover.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "terrace/runtime.h"
#include "tiers/extent_header.h"

namespace terrace {

Mover::Mover(MoverParts parts)
    : clock_(*parts.clock),
      executor_(*parts.executor),
      arena_(parts.arena),
      io_(std::move(parts.io)),
      placement_(static_cast<int>(parts.disks.size()), parts.priors),
      meters_(parts.disks.size()),
      eviction_(std::move(parts.eviction)),
      prefetch_enabled_(parts.prefetch),
      io_timeout_(parts.io_timeout),
      transcript_(parts.transcript),
      inbox_(std::make_shared<Inbox>([io = io_.get()] { io->Wake(); })),
      paths_(std::move(parts.disks), std::move(parts.background), io_timeout_,
             clock_, inbox_),
      space_(static_cast<int64_t>(arena_.size())) {}

Mover::~Mover() {
  inbox_->Shut();
  // The executor's tasks refer to the arena and to the inbox, never to the
  // mover; the caller drains the executor before it frees the arena.
}

absl::Time Mover::RunOnce() {
  if (closed_) return absl::InfiniteFuture();
  completions_.clear();
  io_->Poll(&completions_);
  for (const Completion& completion : completions_) OnCompletion(completion);
  MeasurePaths();
  processed_ = inbox_->Drain(&messages_);
  for (Message& message : messages_) {
    std::visit([this](auto& each) { Handle(each); }, message);
  }
  messages_.clear();

  const absl::Time now = clock_.Now();
  bool gave_up = false;
  if (!closing_) {
    CloseEmptyWindows();  // first: a window that opens may wait for the room
    ServeUnregisters();
    CheckGrowth(now);
    ServeRegisters();
    ServeOpens(now);
    for (Queue* queue : open_queues_) {
      AdmitGroups(*queue, now);
      ExpireGroups(*queue, now);
    }
    const size_t failed = failed_writes_.size();
    StartWriteBacks();
    gave_up = failed_writes_.size() != failed;  // a head may wait for its slot
    // A write-back that failed at once, or a copy that was dropped, may have
    // changed what a head waits for.
    for (Queue* queue : open_queues_) PrefetchFromTrace(*queue);
  }
  peak_bytes_ = std::max(peak_bytes_, space_.used_bytes());
  PublishQueues();
  if (closing_) FinishClose(now);
  if (closed_) return absl::InfiniteFuture();

  // Submits what this step enqueued.
  completions_.clear();
  io_->Poll(&completions_);
  for (const Completion& completion : completions_) OnCompletion(completion);
  if (gave_up || !completions_.empty() || inbox_->posted() != processed_) {
    return clock_.Now();
  }
  return std::min(io_->NextEvent(), NextDeadline());
}

void Mover::Handle(Request& request) {
  std::visit([this](auto& body) { Handle(body); }, request);
}

void Mover::Handle(Event& event) {
  std::visit([this](auto& body) { Handle(body); }, event);
}

void Mover::Handle(OpenRequest& message) {
  if (closing_) {
    message.reply->Set(Closed());
    return;
  }
  const int64_t bytes = WindowBytes(message.slot_bytes, message.slots);
  int64_t others = 0;
  for (const Window& window : windows_) {
    const bool counts = window.open && !window.closing;
    if (counts) others += window.range.size_bytes;
  }
  if (bytes > space_.capacity_bytes() - others) {
    const int64_t windows = bytes > INT64_MAX - others ? bytes : bytes + others;
    message.reply->Set(absl::ResourceExhaustedError(absl::StrCat(
        "a window of ", message.slots, " slots of ", message.slot_bytes,
        " bytes: all windows together would take ", windows,
        " bytes, and the budget is ", space_.capacity_bytes(),
        "; the least budget for it is ", windows)));
    return;
  }
  // The room may be waiting for one of them.
  RetryFailedWrites();
  opens_.push_back({std::move(message), bytes});
}

void Mover::Handle(CloseQueueRequest& message) {
  auto found = queues_.find(message.queue);
  if (found == queues_.end() || found->second->closed) return;
  Queue& queue = *found->second;
  DropWaiting(queue);
  EndUntaken(queue.ready);
  queue.closed = true;
  for (const auto& [id, admitted] : admitted_) {
    if (admitted.first == queue.id) wanted_.Remove(admitted.second.wants);
  }
  windows_[queue.window].closing = true;
  closing_windows_.push_back(queue.window);
  std::erase(open_queues_, &queue);
  NoteIfEnded(queue);
}

void Mover::Handle(PushRequest& message) {
  Queue* queue = FindQueue(message.queue);
  if (queue == nullptr || closing_) return;
  Group group;
  group.id = next_group_++;
  group.tag = message.tag;
  group.wants = std::move(message.wants);
  group.deadline = message.deadline;
  wanted_.Add(group.wants);
  queue->deadlines.emplace(group.deadline, group.id);
  queue->waiting.emplace(group.id, std::move(group));
}

void Mover::Handle(EndPinRequest& message) {
  auto found = pins_.find(message.token);
  TERRACE_CHECK(found != pins_.end());
  const PinRecord pin = found->second;
  pins_.erase(found);
  EndPin(pin, message.end);
}

void Mover::Handle(StepRequest& message) {
  Queue* queue = FindQueue(message.queue);
  if (queue == nullptr || closing_) {
    message.reply->Set(Closed());
    return;
  }
  if (message.kind == StepRequest::Kind::kBegin) {
    if (queue->step_open) {
      message.reply->Set(absl::FailedPreconditionError(
          absl::StrCat("step ", queue->step, " is still open")));
      return;
    }
    queue->step_open = true;
    queue->step = message.step;
    queue->trace.BeginStep();
    queue->first_error = TakeUnsaid(queue->id);
    RetryFailedWrites();
    message.reply->Set(absl::OkStatus());
    return;
  }
  if (!queue->step_open) {
    message.reply->Set(absl::FailedPreconditionError("no step is open"));
    return;
  }
  if (message.kind == StepRequest::Kind::kCommit &&
      message.step != queue->step) {
    message.reply->Set(absl::FailedPreconditionError(absl::StrCat(
        "step ", queue->step, " is open, not step ", message.step)));
    return;
  }
  queue->step_open = false;
  absl::Status result = std::exchange(queue->first_error, absl::OkStatus());
  if (!result.ok() || message.kind == StepRequest::Kind::kAbort) {
    queue->trace.Forget();
  }
  if (message.kind == StepRequest::Kind::kAbort) result = absl::OkStatus();
  message.reply->Set(result);
}

void Mover::Handle(PrefetchRequest& message) {
  if (closing_) return;
  for (TensorId id : message.tensors) {
    TensorEntry* entry = FindRegistered(id);
    if (entry == nullptr || entry->host != HostState::kAbsent ||
        !entry->loss.ok() || entry->home_generation == 0 ||
        entry->home_generation != entry->generation) {
      continue;
    }
    if (!TakeResidentRoom(*entry)) return;
    ++prefetch_reads_;
    entry->prefetched = true;
    StartRead(*entry, IoClass::kPrefetch);
  }
}

void Mover::Handle(StatsRequest& message) { message.reply->Set(MakeStats()); }

void Mover::DropWaiting(Queue& queue) {
  for (const auto& [id, group] : queue.waiting) wanted_.Remove(group.wants);
  queue.waiting.clear();
  queue.deadlines.clear();
}

void Mover::PublishQueues() {
  for (Queue* queue : open_queues_) {
    queue->port->Publish(&queue->ready, queue->blocked_by_own_pins, processed_,
                         queue->blocked_also);
  }
  for (const int64_t id : ended_queues_) queues_.erase(id);
  ended_queues_.clear();
}

// A closed queue stays for its pins and for the fetches that still end in it.
void Mover::NoteIfEnded(const Queue& queue) {
  if (queue.closed && queue.held_pins == 0 && queue.admitted == 0) {
    ended_queues_.push_back(queue.id);
  }
}

absl::Time Mover::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Queue* queue : open_queues_) {
    if (queue->deadlines.empty()) continue;
    next = std::min(next, queue->deadlines.begin()->first);
  }
  for (const PendingOpen& open : opens_) {
    next = std::min(next, open.message.deadline);
  }
  if (!closing_) next = std::min(next, paths_.NextDeadline());
  for (const CloseRequest& close : closes_) {
    next = std::min(next, close.deadline);
  }
  return next;
}

Mover::Queue* Mover::FindQueue(int64_t id) {
  auto found = queues_.find(id);
  if (found == queues_.end() || found->second->closed) return nullptr;
  return found->second.get();
}

Mover::Group* Mover::FindAdmitted(uint64_t id) {
  auto found = admitted_.find(id);
  return found == admitted_.end() ? nullptr : &found->second.second;
}

}  // namespace terrace
