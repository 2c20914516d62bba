#include "daemon/client/relay.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "base/threads/own_thread.h"
#include "daemon/client/leading_clock.h"
#include "daemon/wire/poll_timeout.h"
#include "daemon/wire/ring/ring_file.h"

namespace terrace {
namespace {

// Of a daemon that has closed a runtime, to have given back what it had.
constexpr absl::Duration kEndPatience = absl::Seconds(5);

// The inbox, which is the owner of all pins, and what these point into.
struct Pinned {
  Pinned(SharedMemory mapped, std::function<void()> on_posted)
      : memory(std::move(mapped)), inbox(std::move(on_posted)) {}

  const SharedMemory memory;
  Inbox inbox;
};

std::shared_ptr<Inbox> MakeInbox(SharedMemory memory,
                                 std::function<void()> on_posted) {
  auto pinned =
      std::make_shared<Pinned>(std::move(memory), std::move(on_posted));
  return {pinned, &pinned->inbox};
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

// Where threads wait for the daemon's news: it lives as long as the port.
struct Relay::Heard {
  Heard(ClientId client, SharedMemory mapped, NewsReader::Parts parts)
      : rings(std::move(mapped)),
        port(client, parts.inbox),
        reader(PartsWith(port, std::move(parts))),
        clock(reader, *Rings::In(rings.bytes()).news.words) {}

  static NewsReader::Parts PartsWith(Port& port, NewsReader::Parts parts) {
    parts.port = &port;
    return parts;
  }

  const SharedMemory rings;
  Port port;
  NewsReader reader;
  LeadingClock clock;
};

absl::StatusOr<std::unique_ptr<Relay>> Relay::Start(Parts parts) {
  TERRACE_ASSIGN_OR_RETURN(WakeEvent event, WakeEvent::Make());
  try {
    return std::unique_ptr<Relay>(
        new Relay(std::move(parts), std::move(event)));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start the relay's thread: ", error.what()));
  }
}

Relay::Relay(Parts parts, WakeEvent event)
    : socket_(parts.socket.name()),
      event_(std::make_shared<WakeEvent>(std::move(event))),
      memory_bytes_(parts.memory.bytes()),
      inbox_(MakeInbox(std::move(parts.memory), [this] { OnPosted(); })),
      heard_(std::make_shared<Heard>(
          parts.client, std::move(parts.rings),
          NewsReader::Parts{
              .inbox = inbox_,
              .dues = dues_,
              .relay = event_,
              .memory_bytes = static_cast<int64_t>(memory_bytes_.size()),
              .patience = parts.patience})),
      channel_(std::in_place, std::move(parts.socket), std::nullopt,
               Rings::In(heard_->rings.bytes()).requests,
               Rings::In(heard_->rings.bytes()).news),
      sender_(*channel_, *dues_),
      loops_(std::move(parts.loops)) {
  heard_->reader.Begin(*channel_);
  thread_ = StartThread("terrace-relay", [this] { Run(); });
}

Relay::~Relay() {
  ends_ = true;
  event_->Set();
  thread_.join();
}

std::shared_ptr<Port> Relay::port() const { return {heard_, &heard_->port}; }

Clock& Relay::clock() const { return heard_->clock; }

Stats Relay::last_stats() const { return heard_->reader.last_stats(); }

// On the thread that posts, until the inbox is shut.
void Relay::OnPosted() {
  const absl::StatusOr<bool> all = sender_.Send(*inbox_);
  const bool looks_late =
      looks_at_ns_ > absl::ToUnixNanos(loops_.LatestLook(SystemClock().Now()));
  if (!all.ok() || !*all || looks_late) event_->Set();
}

void Relay::Run() {
  NewsReader& news = heard_->reader;
  absl::Status how;
  while (how.ok() && !news.closed().has_value() && !ends_) {
    Await();
    how = Turn();
  }
  const bool was_closed = news.closed().has_value();
  news.End(how.ok() ? absl::CancelledError("the runtime was closed")
                    : Lost(socket_, how));
  if (was_closed) AwaitEnd();
  channel_.reset();
}

// Once the daemon has ended the connection, what the runtime had is another's
// to ask for.
void Relay::AwaitEnd() {
  const absl::Time patience = SystemClock().Now() + kEndPatience;
  while (SystemClock().Now() < patience) {
    pollfd wait = {channel_->descriptor(), POLLIN, 0};
    poll(&wait, 1, PollTimeout(patience));
    if (!channel_->HearBells().ok()) return;
  }
}

void Relay::Await() {
  NewsReader& news = heard_->reader;
  if (!news.RestForNews() || !sender_.RestForRoom()) return;
  std::array<pollfd, 2> waits = {
      {{event_->descriptor(), POLLIN, 0}, {channel_->descriptor(), POLLIN, 0}}};
  // Who posts after that says so, where it would be looked at too late.
  absl::Time next = std::min(news.NextLook(), loops_.NextLook());
  looks_at_ns_ = absl::ToUnixNanos(next);
  if (loops_.NextLook() == absl::InfiniteFuture()) {
    loops_.OnUnderWay(dues_->oldest());
  }
  next = std::min(next, loops_.NextLook());
  looks_at_ns_ = absl::ToUnixNanos(next);
  poll(waits.data(), waits.size(), PollTimeout(next));
}

absl::Status Relay::Turn() {
  event_->Clear();
  const absl::Time now = SystemClock().Now();
  const absl::Status there = channel_->HearBells();
  const absl::Status sent = Send();
  // What a daemon said before it went says more than that it is gone.
  TERRACE_RETURN_IF_ERROR(heard_->reader.Hear());
  if (heard_->reader.closed().has_value()) return absl::OkStatus();
  TERRACE_RETURN_IF_ERROR(there);
  TERRACE_RETURN_IF_ERROR(sent);
  TERRACE_RETURN_IF_ERROR(LookAtLoops(now));
  return LookAtSilence(now);
}

absl::Status Relay::Send() {
  TERRACE_RETURN_IF_ERROR(sender_.Send(*inbox_).status());
  for (const auto& [request, why] : sender_.TakeRefused()) {
    heard_->reader.Refuse(request, why);
  }
  return absl::OkStatus();
}

absl::Status Relay::LookAtLoops(absl::Time now) {
  if (now < loops_.NextLook()) return absl::OkStatus();
  return loops_.Look(now, dues_->oldest());
}

absl::Status Relay::LookAtSilence(absl::Time now) {
  TERRACE_ASSIGN_OR_RETURN(const NewsReader::Look look,
                           heard_->reader.LookAtSilence(now));
  return look == NewsReader::Look::kAsk ? sender_.Ask() : absl::OkStatus();
}

}  // namespace terrace
