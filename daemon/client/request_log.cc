#include "daemon/client/request_log.h"

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <variant>

#include "base/bytes.h"

namespace terrace {

void RequestLog::Note(const JobRequest& request, uint64_t posted) {
  MutexLock lock(mutex_);
  posted_ = posted;
  std::visit([this](const auto& body)
                 ABSL_NO_THREAD_SAFETY_ANALYSIS { Note(body); },
             request);
}

void RequestLog::Keep(const JobRequest& request) {
  entries_.emplace(next_++, request);
}

template <typename Body>
void RequestLog::Note(const Body& request) {
  if constexpr (requires { request.id; }) {
    asked_[request.id.number] = next_;
    Keep(request);
  } else if constexpr (requires { request.tag; }) {
    groups_[{request.queue, request.tag}].push_back(next_);
    Keep(request);
  }
  // The others are hints, or answers to a daemon that has gone.
}

void RequestLog::Note(const EndPinRequest& request) {
  pins_.erase(request.token);
  recalled_.erase(request.token);
  std::erase_if(waiting_, [&request](const auto& each) {
    return each.first.second == request.token;
  });
  told_.push_back({posted_, next_});
  Keep(request);
}

void RequestLog::Note(const KeepRequest& request) {
  const auto found = recalled_.find(request.token);
  if (found != recalled_.end()) found->second = true;
}

void RequestLog::OnRecalls(const std::vector<uint64_t>& tokens) {
  MutexLock lock(mutex_);
  for (const uint64_t each : tokens) {
    if (pins_.contains(each)) recalled_[each] = false;
  }
}

// What waits there is cancelled by it; another daemon need not have the queue.
void RequestLog::Note(const CloseQueueRequest& request) {
  queues_.erase(request.queue);
  std::erase_if(waiting_, [&request](const auto& each) {
    return each.first.first == request.queue;
  });
  absl::erase_if(groups_, [&](const auto& each) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (each.first.first != request.queue) return false;
    for (const uint64_t entry : each.second) entries_.erase(entry);
    return true;
  });
}

// What counts is who waits now.
void RequestLog::Note(const WaitingRequest& request) {
  for (const uint64_t token : request.in_use) {
    const std::pair<int64_t, uint64_t> of{request.queue, token};
    int& waits = waiting_[of];
    waits += request.begins ? 1 : -1;
    if (waits <= 0) waiting_.erase(of);
  }
}

void RequestLog::Note(const HoldAtMostRequest& request) {
  const auto found = queues_.find(request.queue);
  if (found != queues_.end()) found->second.hold_at_most = request.bytes;
}

void RequestLog::OnAnswer(uint64_t number, const Answer& answer) {
  MutexLock lock(mutex_);
  const auto found = asked_.find(number);
  if (found == asked_.end()) return;
  const auto entry = entries_.find(found->second);
  asked_.erase(found);
  Learn(entry->second, answer);
  entries_.erase(entry);
}

void RequestLog::Learn(const JobRequest& request, const Answer& answer) {
  const auto* const status = std::get_if<absl::Status>(&answer);
  const bool is_done = status != nullptr && status->ok();
  if (const auto* const ids = std::get_if<std::vector<TensorId>>(&answer)) {
    for (const TensorId each : *ids) Learn(each);
  } else if (const auto* const opened = std::get_if<OpenedQueue>(&answer)) {
    queues_[opened->id] = {.queue = opened->id};
  } else if (const auto* const step = std::get_if<StepRequest>(&request)) {
    const auto found = queues_.find(step->queue);
    if (found == queues_.end()) return;
    // A step ends also where its answer is its error; one that was refused,
    // as another step was open or none, changes nothing.
    const bool begins = step->kind == StepRequest::Kind::kBegin;
    const bool is_refused =
        status == nullptr || absl::IsFailedPrecondition(*status);
    if (is_refused || (begins && !is_done)) return;
    found->second.step = begins ? std::optional(step->step) : std::nullopt;
  } else if (const auto* const grow = std::get_if<GrowRequest>(&request)) {
    if (is_done) memory_bytes_ += RoundUp(grow->bytes, kBlockBytes);
  }
}

// Their numbers rise by one, as a rule.
void RequestLog::Learn(TensorId tensor) {
  const int64_t id = tensor.value;
  auto next = tensors_.upper_bound(id);
  if (next != tensors_.begin()) {
    const auto before = std::prev(next);
    if (before->second > id) return;
    if (before->second == id) {
      ++before->second;
      if (next == tensors_.end() || next->first != id + 1) return;
      before->second = next->second;
      tensors_.erase(next);
      return;
    }
  }
  int64_t end = id + 1;
  if (next != tensors_.end() && next->first == end) {
    end = next->second;
    tensors_.erase(next);
  }
  tensors_[id] = end;
}

void RequestLog::OnGroups(int64_t queue,
                          const std::vector<ReadyGroup>& groups) {
  MutexLock lock(mutex_);
  for (const ReadyGroup& group : groups) {
    if (group.grants.ok()) {
      for (const Grant& each : *group.grants) pins_.insert(each.token);
    }
    for (const uint64_t each : group.recalls) {
      if (pins_.contains(each)) recalled_[each] = false;
    }
    const auto found = groups_.find({queue, group.tag});
    if (found == groups_.end()) continue;
    entries_.erase(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) groups_.erase(found);
  }
}

void RequestLog::OnProcessed(uint64_t posted) {
  MutexLock lock(mutex_);
  while (!told_.empty() && told_.front().posted <= posted) {
    entries_.erase(told_.front().entry);
    told_.pop_front();
  }
}

ClaimRequest RequestLog::ClaimLocked() const {
  ClaimRequest claim;
  claim.memory_bytes = memory_bytes_;
  for (const auto& [id, queue] : queues_) claim.queues.push_back(queue);
  claim.pins.assign(pins_.begin(), pins_.end());
  for (const auto& [token, is_kept] : recalled_) {
    claim.recalled.push_back(token);
    if (is_kept) claim.kept.push_back(token);
  }
  for (const auto& [order, request] : entries_) {
    if (const auto* const end = std::get_if<EndPinRequest>(&request)) {
      claim.pins.push_back(end->token);
    } else if (const auto* const ends =
                   std::get_if<UnregisterRequest>(&request)) {
      claim.unregistering.push_back(ends->tensor);
    }
  }
  for (const auto& [first, end] : tensors_) {
    claim.known.push_back({first, end});
  }
  return claim;
}

std::vector<JobRequest> RequestLog::Again() const {
  MutexLock lock(mutex_);
  std::vector<JobRequest> all;
  all.emplace_back(ClaimLocked());
  for (const auto& [of, waits] : waiting_) {
    WaitingRequest request{.queue = of.first, .begins = true};
    request.in_use.assign(1, of.second);
    for (int i = 0; i < waits; ++i) all.emplace_back(request);
  }
  for (const auto& [order, request] : entries_) all.push_back(request);
  return all;
}

uint64_t RequestLog::posted() const {
  MutexLock lock(mutex_);
  return posted_;
}

}  // namespace terrace
