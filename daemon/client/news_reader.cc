#include "daemon/client/news_reader.h"

#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "daemon/client/request_sender.h"

namespace terrace {

NewsReader::NewsReader(Parts parts)
    : parts_(std::move(parts)),
      queues_(*parts_.port, parts_.memory_bytes),
      silence_(SystemClock().Now(), parts_.patience) {}

void NewsReader::Begin(MessageChannel& channel) {
  MutexLock lock(mutex_);
  channel_ = &channel;
  silence_ = Silence(SystemClock().Now(), parts_.patience);
  hears_ = true;
}

void NewsReader::Pause() {
  MutexLock lock(mutex_);
  hears_ = false;
  channel_ = nullptr;
  // Nobody is asked whether he is there.
  parts_.dues->Take(kOwnNumber);
}

absl::Status NewsReader::Hear(int messages) {
  MutexLock lock(mutex_);
  if (!hears()) return how_;
  const absl::StatusOr<bool> all = HearAll(messages);
  how_ = all.status();
  if (all.ok() && *all && !closed_.has_value()) return how_;
  hears_ = how_.ok() && !closed_.has_value();
  parts_.relay->Set();
  return how_;
}

absl::StatusOr<bool> NewsReader::HearAll(int messages) {
  for (; !closed_.has_value(); --messages) {
    if (messages == 0) return false;
    Envelope message;
    TERRACE_ASSIGN_OR_RETURN(const bool has_heard, channel_->Receive(&message));
    if (!has_heard) break;
    // While the mover has a question, its answer alone says that all turn.
    if (!parts_.dues->Has(kOwnNumber)) silence_.OnHeard(SystemClock().Now());
    TERRACE_RETURN_IF_ERROR(Hear(message));
  }
  return true;
}

absl::Status NewsReader::Hear(Envelope& message) {
  if (const auto* const refusal = std::get_if<Refusal>(&message.body)) {
    return refusal->why;
  }
  auto* const news = std::get_if<JobNews>(&message.body);
  if (news == nullptr) return WrongAnswer("something else than news");
  for (JobNewsEntry& entry : news->entries) {
    TERRACE_RETURN_IF_ERROR(
        std::visit([this](auto& each)
                       ABSL_NO_THREAD_SAFETY_ANALYSIS { return Hear(each); },
                   entry));
  }
  if (parts_.log != nullptr) parts_.log->OnProcessed(news->processed);
  return absl::OkStatus();
}

absl::Status NewsReader::Hear(AnswerNews& news) {
  const std::optional<Due> due = parts_.dues->Take(news.number);
  if (!due.has_value()) {
    return WrongAnswer(absl::StrCat("an answer to no request: ", news.number));
  }
  if (news.number == kOwnNumber) silence_.OnHeard(SystemClock().Now());
  if (parts_.log != nullptr) parts_.log->OnAnswer(news.number, news.answer);
  TERRACE_RETURN_IF_ERROR(CheckAnswer(*due, news.answer));
  if (const auto* const opened = std::get_if<OpenedQueue>(&news.answer)) {
    if (due->kind == Due::Kind::kBytes) {
      queues_.OpenBytes(opened->id);
    } else {
      queues_.OpenQueue(opened->id);
    }
  }
  if (const auto* const stats = std::get_if<Stats>(&news.answer)) {
    last_stats_ = *stats;
  }
  const auto* const status = std::get_if<absl::Status>(&news.answer);
  // What is refused changes nothing.
  const bool is_closed =
      due->kind == Due::Kind::kClose && !absl::IsFailedPrecondition(*status);
  if (is_closed) {
    closed_ = *status;
    Shut(absl::CancelledError("the runtime was closed"));
  }
  parts_.port->Deliver(news.number, std::move(news.answer));
  return absl::OkStatus();
}

absl::Status NewsReader::CheckAnswer(const Due& due,
                                     const Answer& answer) const {
  const auto* const status = std::get_if<absl::Status>(&answer);
  if (status != nullptr && !status->ok()) return absl::OkStatus();
  switch (due.kind) {
    case Due::Kind::kStatus:
    case Due::Kind::kClose:
      if (status != nullptr) return absl::OkStatus();
      break;
    case Due::Kind::kTensors: {
      const auto* const ids = std::get_if<std::vector<TensorId>>(&answer);
      if (ids != nullptr && ids->size() == due.tensors) return absl::OkStatus();
      break;
    }
    case Due::Kind::kQueue:
    case Due::Kind::kBytes: {
      const auto* const opened = std::get_if<OpenedQueue>(&answer);
      const bool is_new = opened != nullptr && opened->tier == kDramTier &&
                          !queues_.Has(opened->id);
      if (is_new) return absl::OkStatus();
      break;
    }
    case Due::Kind::kStats:
      if (std::holds_alternative<Stats>(answer)) return absl::OkStatus();
      break;
  }
  return WrongAnswer("another kind of answer than was asked for");
}

absl::Status NewsReader::Hear(LastStats& news) {
  last_stats_ = std::move(news.stats);
  return absl::OkStatus();
}

std::optional<absl::Status> NewsReader::closed() const {
  MutexLock lock(mutex_);
  return closed_;
}

bool NewsReader::RestForNews() {
  MutexLock lock(mutex_);
  return channel_ == nullptr || channel_->RestForNews();
}

// A group that cannot be sent has nobody to answer it but its queue.
void NewsReader::Refuse(const JobRequest& request, const absl::Status& why) {
  MutexLock lock(mutex_);
  std::visit(
      [&](const auto& body) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        if constexpr (requires { body.id; }) {
          parts_.dues->Take(body.id.number);
          if (parts_.log != nullptr) parts_.log->OnAnswer(body.id.number, why);
          parts_.port->Deliver(body.id.number, why);
        } else if constexpr (requires { body.tag; }) {
          std::vector<ReadyGroup> failed(1);
          failed.front().tag = body.tag;
          failed.front().grants = why;
          parts_.dues->EndGroups(body.queue, failed);
          if (parts_.log != nullptr) parts_.log->OnGroups(body.queue, failed);
          queues_.Fail(body, why);
        }
      },
      request);
}

void NewsReader::Shut(const absl::Status& why) {
  for (Message& each : parts_.inbox->Shut(why)) {
    const std::optional<JobRequest> request = RequestOf(each);
    if (!request.has_value()) continue;
    parts_.dues->Note(*request, SystemClock().Now());
  }
  queues_.CloseAll();
}

void NewsReader::End(const absl::Status& why) {
  MutexLock lock(mutex_);
  hears_ = false;
  channel_ = nullptr;
  Shut(why);
  for (const auto& [number, due] : parts_.dues->TakeAll()) {
    const bool asked_for_it =
        due.kind == Due::Kind::kClose && closed_.has_value();
    parts_.port->Deliver(number, asked_for_it ? *closed_ : why);
  }
  parts_.port->DeliverToAll(why);
}

absl::StatusOr<NewsReader::Look> NewsReader::LookAtSilence(absl::Time now) {
  MutexLock lock(mutex_);
  if (silence_.HasLasted(now, parts_.dues->Allowed())) {
    return absl::UnavailableError(absl::StrCat(
        "it has said nothing for ", absl::FormatDuration(silence_.patience()),
        ": it is stopped"));
  }
  if (!silence_.IsToBeAsked(now)) return Look::kWait;
  silence_.OnAsked(now);
  return Look::kAsk;
}

absl::Time NewsReader::NextLook() const {
  MutexLock lock(mutex_);
  return silence_.NextLook(parts_.dues->Allowed());
}

Stats NewsReader::last_stats() const {
  MutexLock lock(mutex_);
  return last_stats_;
}

}  // namespace terrace
