#include "libtorch/hook/window/window_queue.h"

#include <utility>

#include "base/status_macros.h"
#include "terrace/runtime.h"

namespace terrace {

absl::Status WindowQueue::Open(int64_t promised_bytes) {
  OrderedLock lock(mutex_);
  if (queue_ != nullptr) return absl::OkStatus();
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<ByteQueue> queue,
                           runtime_.OpenBytes(promised_bytes, tier_));
  TERRACE_RETURN_IF_ERROR(queue->HoldAtMost(most_bytes_));
  TERRACE_ASSIGN_OR_RETURN(
      recalls_,
      RecallThread::Start(*queue, [this](uint64_t token) { Answer(token); }));
  queue_ = std::move(queue);
  return absl::OkStatus();
}

void WindowQueue::HoldAtMost(int64_t bytes) {
  OrderedLock lock(mutex_);
  most_bytes_ = bytes;
  // A Runtime that is closed asks for nothing any more.
  if (queue_ != nullptr) queue_->HoldAtMost(bytes).IgnoreError();
}

void WindowQueue::Shut() {
  if (!process_.IsCurrent()) {
    // A thread that the forked child lacks may hold the mutexes.
    recalls_.reset();
    queue_.reset();
    return;
  }
  OrderedLock step(step_mutex_);
  recalls_.reset();
  std::unique_ptr<ByteQueue> queue;
  OrderedLock lock(mutex_);
  queue.swap(queue_);
}

absl::StatusOr<WindowQueue::Taken> WindowQueue::Take(
    absl::Span<WindowTensor* const> tensors, Access access,
    absl::Span<const uint64_t> in_use, absl::Time deadline, UseLane lane) {
  TellUses();
  const Request request = Push(tensors, access, in_use, deadline, lane);
  absl::StatusOr<Taken> taken = Await(request);
  Note(request, tensors, taken.ok() ? taken->pins : absl::Span<const Pin>());
  return taken;
}

WindowQueue::Request WindowQueue::Push(absl::Span<WindowTensor* const> tensors,
                                       Access access,
                                       absl::Span<const uint64_t> in_use,
                                       absl::Time deadline, UseLane lane) {
  std::vector<Want> wants;
  for (const WindowTensor* const each : tensors) {
    wants.push_back({each->id_, access});
  }
  OrderedLock lock(mutex_);
  taking_.insert(++tickets_);
  return {tickets_,
          queue_->Push(wants, in_use, deadline, static_cast<int>(lane))};
}

// By its deadline a request is answered, but for what its transfers take.
absl::StatusOr<WindowQueue::Taken> WindowQueue::Await(const Request& request) {
  TERRACE_RETURN_IF_ERROR(request.id.status());
  while (true) {
    TERRACE_ASSIGN_OR_RETURN(
        Awaited news, queue_->Await(*request.id, absl::InfiniteFuture()));
    for (const uint64_t token : news.recalls) Answer(token);
    if (!news.pins.has_value()) continue;
    TERRACE_RETURN_IF_ERROR(news.pins->status());
    return Taken{**std::move(news.pins), news.cause, news.beyond_bytes,
                 news.ahead};
  }
}

void WindowQueue::Note(const Request& request,
                       absl::Span<WindowTensor* const> tensors,
                       absl::Span<const Pin> pins) {
  OrderedLock lock(mutex_);
  for (size_t i = 0; i < pins.size(); ++i) {
    WindowTensor& tensor = *tensors[i];
    const uint64_t token = pins[i].token();
    tensor.token_.store(token, std::memory_order_release);
    tensors_[token] = &tensor;
    // Its word is in loading, so that it leaves with its last use.
    if (early_.erase(token) > 0) tensor.word().Want();
    if (waiting_.contains(&tensor)) {
      queue_->BeginWaiting({&token, 1}).IgnoreError();
    }
  }
  taking_.erase(request.ticket);
  const uint64_t oldest = taking_.empty() ? tickets_ + 1 : *taking_.begin();
  absl::erase_if(early_,
                 [&](const auto& each) { return each.second < oldest; });
}

void WindowQueue::Forget(WindowTensor& tensor) {
  OrderedLock lock(mutex_);
  tensors_.erase(tensor.token());
  tensor.token_.store(0, std::memory_order_release);
  tensor.word().EndWant();
}

void WindowQueue::NoteUse(const WindowTensor& tensor, UseLane lane) {
  const int64_t most_bytes = most_bytes_.load(std::memory_order_relaxed) / 8;
  if (untold_.Add(lane, tensor.id_, tensor.size_bytes(), most_bytes)) {
    TellUses();
  }
}

void WindowQueue::TellUses() {
  const UntoldUses::Uses uses = untold_.Take();
  for (size_t lane = 0; lane < uses.size(); ++lane) {
    if (!uses[lane].empty()) queue_->Touch(uses[lane], static_cast<int>(lane));
  }
}

void WindowQueue::BeginStep() {
  OrderedLock one(step_mutex_);
  {
    OrderedLock lock(mutex_);
    if (queue_ == nullptr) return;
  }
  TellUses();
  // A step is a place in the order of uses here. What could not be written is
  // told where its room is lacked.
  if (steps_ > 0) queue_->AbortStep().IgnoreError();
  queue_->BeginStep(++steps_).IgnoreError();
}

int64_t WindowQueue::EvictIdle() {
  std::vector<uint64_t> tokens;
  {
    OrderedLock lock(mutex_);
    for (const auto& [token, each] : tensors_) tokens.push_back(token);
  }
  int64_t count = 0;
  for (const uint64_t token : tokens) {
    WindowTensor* idle = nullptr;
    {
      // No tensor is forgotten while the mutex is held; once its word is ours,
      // it cannot be.
      OrderedLock lock(mutex_);
      const auto found = tensors_.find(token);
      if (found == tensors_.end()) continue;
      WindowTensor& tensor = *found->second;
      // One whose storage is gone is about to be removed.
      if (!tensor.gone() && tensor.word().BeginEvict()) idle = &tensor;
    }
    if (idle == nullptr) continue;
    evict_(*idle);
    ++count;
  }
  return count;
}

int64_t WindowQueue::BytesInUse() const {
  int64_t bytes = 0;
  OrderedLock lock(mutex_);
  for (const auto& [token, each] : tensors_) {
    const ResidencyWord& word = each->word();
    const Residency state = word.state();
    const bool is_used = state == Residency::kLoading ||
                         (state == Residency::kResident && word.pinned());
    if (is_used) bytes += ResidentBytes(each->size_bytes());
  }
  return bytes;
}

void WindowQueue::BeginWaiting(const WindowTensor& tensor) {
  OrderedLock lock(mutex_);
  const uint64_t token = tensor.token();
  if (++waiting_[&tensor] > 1 || token == 0) return;
  queue_->BeginWaiting({&token, 1}).IgnoreError();
}

void WindowQueue::EndWaiting(const WindowTensor& tensor) {
  OrderedLock lock(mutex_);
  const auto found = waiting_.find(&tensor);
  if (--found->second > 0) return;
  waiting_.erase(found);
  const uint64_t token = tensor.token();
  if (token != 0) queue_->EndWaiting({&token, 1});
}

void WindowQueue::Answer(uint64_t token) {
  WindowTensor* leaving = nullptr;
  {
    OrderedLock lock(mutex_);
    const auto found = tensors_.find(token);
    if (found == tensors_.end()) {
      // Of one that has ended since, which nobody notes, nothing is kept long.
      if (!taking_.empty()) early_[token] = tickets_;
    } else if (found->second->word().Want()) {
      leaving = found->second;  // it cannot be removed now
    }
  }
  leaving != nullptr ? evict_(*leaving) : queue_->Keep(token);
}

}  // namespace terrace
