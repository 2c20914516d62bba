#include "daemon/client/request_sender.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <type_traits>
#include <variant>

#include "base/clock.h"
#include "base/status_macros.h"

namespace terrace {
std::optional<JobRequest> RequestOf(Message& message) {
  return std::visit(
      [](auto& kind) -> std::optional<JobRequest> {
        using Kind = std::decay_t<decltype(kind)>;
        if constexpr (std::is_same_v<Kind, Event>) {
          return std::nullopt;
        } else {
          return std::visit(
              [](auto& body) -> std::optional<JobRequest> {
                if constexpr (requires { body.deadline; }) {
                  body.deadline = SystemClock().ToWall(body.deadline);
                }
                if constexpr (std::is_constructible_v<JobRequest,
                                                      decltype(body)>) {
                  return JobRequest(std::move(body));
                } else {
                  return std::nullopt;
                }
              },
              kind);
        }
      },
      message);
}

absl::StatusOr<bool> RequestSender::Send(Inbox& inbox) {
  MutexLock lock(mutex_);
  if (channel_ == nullptr) return true;
  if (how_.ok()) how_ = SendAll(inbox);
  TERRACE_RETURN_IF_ERROR(how_);
  return !channel_->has_unsent() && refused_.empty();
}

void RequestSender::Begin(MessageChannel& channel) {
  MutexLock lock(mutex_);
  channel_ = &channel;
}

void RequestSender::Pause() {
  MutexLock lock(mutex_);
  channel_ = nullptr;
}

absl::Status RequestSender::BeginAgain(MessageChannel& channel) {
  MutexLock lock(mutex_);
  channel_ = &channel;
  TERRACE_RETURN_IF_ERROR(
      Send({.posted = log_->posted(), .requests = log_->Again()}));
  for (const auto& [request, why] : refused_) {
    if (std::holds_alternative<ClaimRequest>(request)) return why;
  }
  return absl::OkStatus();
}

absl::Status RequestSender::SendAll(Inbox& inbox) {
  TERRACE_RETURN_IF_ERROR(channel_->Flush());
  if (channel_->is_full()) return absl::OkStatus();  // more stays in the inbox
  drained_.clear();
  const uint64_t last = inbox.Drain(&drained_);
  if (drained_.empty()) return absl::OkStatus();
  JobRequests batch{.posted = last, .requests = {}};
  const absl::Time now = SystemClock().Now();
  for (Message& each : drained_) {
    std::optional<JobRequest> request = RequestOf(each);
    if (!request.has_value()) continue;
    dues_.Note(*request, now);
    if (log_ != nullptr) log_->Note(*request, last);
    batch.requests.push_back(*std::move(request));
  }
  return Send(std::move(batch));
}

// Those that are too many or too long together go by halves, of which the last
// one says how many were posted; one that is too long by itself is refused.
absl::Status RequestSender::Send(JobRequests batch) {
  std::vector<JobRequest>& all = batch.requests;
  if (all.size() <= kMostRequestsInMessage) {
    Envelope message{.body = std::move(batch)};
    absl::Status sent = channel_->Send(message);
    if (!absl::IsResourceExhausted(sent)) return sent;
    batch = std::get<JobRequests>(std::move(message.body));
    if (all.size() == 1) {
      refused_.emplace_back(std::move(all.front()), std::move(sent));
      all.clear();
      return channel_->Send({.body = std::move(batch)});
    }
  }
  JobRequests first;
  const auto middle = all.begin() + static_cast<ptrdiff_t>(all.size() / 2);
  first.requests.assign(std::make_move_iterator(all.begin()),
                        std::make_move_iterator(middle));
  all.erase(all.begin(), middle);
  TERRACE_RETURN_IF_ERROR(Send(std::move(first)));
  return Send(std::move(batch));
}

absl::Status RequestSender::Ask() {
  MutexLock lock(mutex_);
  // It has been asked, by others, or by the question before.
  if (channel_ == nullptr || channel_->is_full() || dues_.Has(kOwnNumber)) {
    return absl::OkStatus();
  }
  JobRequests batch;
  batch.requests.emplace_back(StatsRequest{{.number = kOwnNumber}});
  dues_.Note(batch.requests.front(), SystemClock().Now());
  return Send(std::move(batch));
}

bool RequestSender::RestForRoom() {
  MutexLock lock(mutex_);
  return channel_ == nullptr || channel_->RestForRoom();
}

std::vector<RequestSender::Refused> RequestSender::TakeRefused() {
  MutexLock lock(mutex_);
  return std::exchange(refused_, {});
}

}  // namespace terrace
