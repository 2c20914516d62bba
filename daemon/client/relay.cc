#include "daemon/client/relay.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "base/threads/own_thread.h"
#include "daemon/wire/poll_timeout.h"

namespace terrace {
namespace {

// Of a daemon that has closed a runtime, to have given back what it had.
constexpr absl::Duration kEndPatience = absl::Seconds(5);
// Of a question that is the relay's own, which no port asks.
constexpr uint64_t kOwnNumber = UINT64_MAX;

// The inbox, which is the owner of all pins, and what these point into.
struct Pinned {
  Pinned(SharedMemory mapped, std::shared_ptr<WakeEvent> event)
      : memory(std::move(mapped)),
        inbox([event = std::move(event)] { event->Set(); }) {}

  const SharedMemory memory;
  Inbox inbox;
};

// As it is sent: deadlines are by the wall clock there. None: it is of no kind
// that a connection has.
std::optional<JobRequest> Outside(Message& message) {
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

absl::Status Lost(const std::string& socket, const absl::Status& why) {
  // What one of the two did wrong stays that.
  const bool is_gone = absl::IsUnavailable(why) || absl::IsCancelled(why);
  if (!is_gone) {
    return absl::Status(why.code(),
                        absl::StrCat("the connection to the daemon has ended, "
                                     "and what it kept is lost: ",
                                     absl::string_view(why.message())));
  }
  return WithIoFault(
      absl::UnavailableError(absl::StrCat(
          "the daemon is gone, and what it kept; a checkpoint is where to go "
          "on from: ",
          absl::string_view(why.message()))),
      {ECONNRESET, socket});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Relay>> Relay::Start(PacketSocket socket,
                                                    ClientId client,
                                                    SharedMemory memory,
                                                    StoppedLoops loops,
                                                    absl::Duration patience) {
  TERRACE_ASSIGN_OR_RETURN(WakeEvent event, WakeEvent::Make());
  try {
    return std::unique_ptr<Relay>(new Relay(std::move(socket), client,
                                            std::move(memory), std::move(loops),
                                            patience, std::move(event)));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start the relay's thread: ", error.what()));
  }
}

Relay::Relay(PacketSocket socket, ClientId client, SharedMemory memory,
             StoppedLoops loops, absl::Duration patience, WakeEvent event)
    : socket_(socket.name()),
      channel_(std::in_place, std::move(socket), std::nullopt),
      event_(std::make_shared<WakeEvent>(std::move(event))),
      memory_bytes_(memory.bytes()),
      silence_(SystemClock().Now(), patience),
      loops_(std::move(loops)) {
  auto pinned = std::make_shared<Pinned>(std::move(memory), event_);
  inbox_ = std::shared_ptr<Inbox>(pinned, &pinned->inbox);
  port_ = std::make_shared<Port>(client, inbox_);
  queues_.emplace(port_, static_cast<int64_t>(memory_bytes_.size()));
  thread_ = StartThread("terrace-relay", [this] { Run(); });
}

Relay::~Relay() {
  ends_ = true;
  event_->Set();
  thread_.join();
}

Stats Relay::last_stats() const {
  MutexLock lock(mutex_);
  return last_stats_;
}

void Relay::KeepStats(Stats stats) {
  MutexLock lock(mutex_);
  last_stats_ = std::move(stats);
}

void Relay::Run() {
  absl::Status how;
  while (how.ok() && !closed_.has_value() && !ends_) {
    Await();
    how = Turn();
  }
  const absl::Status why = how.ok()
                               ? absl::CancelledError("the runtime was closed")
                               : Lost(socket_, how);
  Shut(why);
  AnswerAll(why);
  if (closed_.has_value()) AwaitEnd();
  channel_.reset();
}

// Once the daemon has ended the connection, what the runtime had is another's
// to ask for.
void Relay::AwaitEnd() {
  const absl::Time patience = SystemClock().Now() + kEndPatience;
  while (SystemClock().Now() < patience) {
    pollfd wait = {channel_->descriptor(), POLLIN, 0};
    poll(&wait, 1, PollTimeout(patience));
    if (!channel_->Receive().ok()) return;
  }
}

void Relay::Await() const {
  const bool writes = channel_->has_unsent();
  std::array<pollfd, 2> waits = {
      {{event_->descriptor(), POLLIN, 0},
       {channel_->descriptor(),
        static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0}}};
  const absl::Time next =
      std::min(silence_.NextLook(Allowed()), loops_.NextLook());
  poll(waits.data(), waits.size(), PollTimeout(next));
}

absl::Status Relay::Turn() {
  event_->Clear();
  const absl::Time now = SystemClock().Now();
  absl::Status sent = channel_->Flush();
  if (sent.ok()) sent = SendRequests();
  // What a daemon said before it went says more than that it is gone.
  absl::Status heard = HearNews();
  if (heard.ok() && sent.ok()) heard = AskInSilence(now);
  const bool says_more = !heard.ok() && !absl::IsUnavailable(heard);
  return says_more || sent.ok() ? heard : sent;
}

absl::Status Relay::SendRequests() {
  if (channel_->is_full()) return absl::OkStatus();  // more stays in the inbox
  std::deque<Message> drained;
  const uint64_t last = inbox_->Drain(&drained);
  if (drained.empty()) return absl::OkStatus();
  JobRequests batch{.posted = last, .requests = {}};
  for (Message& each : drained) {
    std::optional<JobRequest> request = Outside(each);
    if (request.has_value()) batch.requests.push_back(*std::move(request));
  }
  const absl::Time now = SystemClock().Now();
  for (const JobRequest& each : batch.requests) NoteDue(each, now);
  loops_.OnBegun(now);
  return Send(std::move(batch));
}

// Those that are too many or too long together go by halves, of which the last
// one says how many were posted; one that is too long by itself is answered
// here.
absl::Status Relay::Send(JobRequests batch) {
  std::vector<JobRequest>& all = batch.requests;
  if (all.size() <= kMostRequestsInMessage) {
    Envelope message{.body = std::move(batch)};
    absl::Status sent = channel_->Send(message);
    if (!absl::IsResourceExhausted(sent)) return sent;
    batch = std::get<JobRequests>(std::move(message.body));
    if (all.size() == 1) {
      Refuse(all.front(), sent);
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

// A group that cannot be sent has nobody to answer it but its queue.
void Relay::Refuse(const JobRequest& request, const absl::Status& why) {
  std::visit(
      [&](const auto& body) {
        if constexpr (requires { body.id; }) {
          due_.erase(body.id.number);
          under_way_.EndRequest(body.id.number);
          port_->Deliver(body.id.number, why);
        } else if constexpr (requires { body.tag; }) {
          under_way_.EndGroup(body.queue, body.tag);
          queues_->Fail(body, why);
        }
      },
      request);
}

void Relay::NoteDue(const JobRequest& request, absl::Time now) {
  std::visit(
      [&](const auto& body) {
        using Body = std::decay_t<decltype(body)>;
        if constexpr (requires { body.id; }) {
          Due due;
          if constexpr (std::is_same_v<Body, RegisterRequest>) {
            due = {Due::Kind::kTensors, body.specs.size()};
          } else if constexpr (std::is_same_v<Body, OpenRequest>) {
            due.kind = Due::Kind::kQueue;
          } else if constexpr (std::is_same_v<Body, OpenBytesRequest>) {
            due.kind = Due::Kind::kBytes;
          } else if constexpr (std::is_same_v<Body, StatsRequest>) {
            due.kind = Due::Kind::kStats;
          } else if constexpr (std::is_same_v<Body, CloseRequest>) {
            due.kind = Due::Kind::kClose;
          } else if constexpr (std::is_same_v<Body, GrowRequest>) {
            due.takes = PopulationPatience(body.bytes);
          }
          due_[body.id.number] = due;
          under_way_.BeginRequest(body.id.number, now);
        } else if constexpr (requires { body.tag; }) {
          under_way_.BeginGroup(body.queue, body.tag, now);
        }
      },
      request);
}

absl::Status Relay::HearNews() {
  while (!closed_.has_value()) {
    TERRACE_ASSIGN_OR_RETURN(std::optional<Envelope> message,
                             channel_->Receive());
    if (!message.has_value()) break;
    // While the mover has a question, its answer alone says that all turn.
    if (!due_.contains(kOwnNumber)) silence_.OnHeard(SystemClock().Now());
    if (const auto* const refusal = std::get_if<Refusal>(&message->body)) {
      return refusal->why;
    }
    auto* const news = std::get_if<JobNews>(&message->body);
    if (news == nullptr) return WrongAnswer("something else than news");
    for (JobNewsEntry& entry : news->entries) {
      TERRACE_RETURN_IF_ERROR(
          std::visit([this](auto& each) { return Hear(each); }, entry));
    }
  }
  return absl::OkStatus();
}

absl::Status Relay::AskInSilence(absl::Time now) {
  if (closed_.has_value()) return absl::OkStatus();
  if (now >= loops_.NextLook()) {
    TERRACE_RETURN_IF_ERROR(loops_.Look(now, under_way_.oldest()));
  }
  if (silence_.HasLasted(now, Allowed())) {
    return absl::UnavailableError(absl::StrCat(
        "it has said nothing for ", absl::FormatDuration(silence_.patience()),
        ": it is stopped"));
  }
  if (!silence_.IsToBeAsked(now)) return absl::OkStatus();
  silence_.OnAsked(now);
  if (channel_->is_full()) return absl::OkStatus();  // it has been, by others
  JobRequests batch;
  batch.requests.emplace_back(StatsRequest{{.number = kOwnNumber}});
  due_[kOwnNumber] = {.kind = Due::Kind::kStats};
  return Send(std::move(batch));
}

absl::Duration Relay::Allowed() const {
  absl::Duration allowed;
  for (const auto& [number, due] : due_) allowed += due.takes;
  return allowed;
}

absl::Status Relay::Hear(AnswerNews& news) {
  const auto found = due_.find(news.number);
  if (found == due_.end()) {
    return WrongAnswer(absl::StrCat("an answer to no request: ", news.number));
  }
  const Due due = found->second;
  due_.erase(found);
  under_way_.EndRequest(news.number);
  if (news.number == kOwnNumber) silence_.OnHeard(SystemClock().Now());
  TERRACE_RETURN_IF_ERROR(CheckAnswer(due, news.answer));
  if (const auto* const opened = std::get_if<OpenedQueue>(&news.answer)) {
    if (due.kind == Due::Kind::kBytes) {
      queues_->OpenBytes(opened->id);
    } else {
      queues_->OpenQueue(opened->id);
    }
  }
  if (const auto* const stats = std::get_if<Stats>(&news.answer)) {
    KeepStats(*stats);
  }
  const auto* const status = std::get_if<absl::Status>(&news.answer);
  // What is refused changes nothing.
  const bool is_closed =
      due.kind == Due::Kind::kClose && !absl::IsFailedPrecondition(*status);
  if (is_closed) {
    closed_ = *status;
    Shut(absl::CancelledError("the runtime was closed"));
  }
  port_->Deliver(news.number, std::move(news.answer));
  return absl::OkStatus();
}

absl::Status Relay::CheckAnswer(const Due& due, const Answer& answer) const {
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
                          !queues_->Has(opened->id);
      if (is_new) return absl::OkStatus();
      break;
    }
    case Due::Kind::kStats:
      if (std::holds_alternative<Stats>(answer)) return absl::OkStatus();
      break;
  }
  return WrongAnswer("another kind of answer than was asked for");
}

absl::Status Relay::Hear(LastStats& news) {
  KeepStats(std::move(news.stats));
  return absl::OkStatus();
}

void Relay::AnswerAll(const absl::Status& why) {
  for (const auto& [number, due] : due_) {
    const bool asked_for_it =
        due.kind == Due::Kind::kClose && closed_.has_value();
    port_->Deliver(number, asked_for_it ? *closed_ : why);
  }
  port_->DeliverToAll(why);
}

void Relay::Shut(const absl::Status& why) {
  for (Message& each : inbox_->Shut(why)) {
    const std::optional<JobRequest> request = Outside(each);
    if (request.has_value()) NoteDue(*request, SystemClock().Now());
  }
  queues_->CloseAll();
}

}  // namespace terrace
