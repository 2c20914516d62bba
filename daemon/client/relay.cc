#include "daemon/client/relay.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "base/threads/own_thread.h"
#include "daemon/client/leading_clock.h"
#include "daemon/wire/poll_timeout.h"
#include "daemon/wire/ring/ring_file.h"
#include "terrace/version.h"

namespace terrace {
namespace {

// Of a daemon that has closed a runtime, to have given back what it had.
constexpr absl::Duration kEndPatience = absl::Seconds(5);
// Between looks for another daemon.
constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr absl::Duration kLongestPause = absl::Milliseconds(200);

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
      : port(client, parts.inbox),
        reader(PartsWith(port, std::move(parts))),
        clock(reader, *(Add(std::move(mapped)), rings().news.words)) {}

  static NewsReader::Parts PartsWith(Port& port, NewsReader::Parts parts) {
    parts.port = &port;
    return parts;
  }
  void Add(SharedMemory mapped) { all.push_back(std::move(mapped)); }
  Rings rings() const { return Rings::In(all.back().bytes()); }

  // Of each daemon there was: a thread may look at one that has gone. The last
  // one's are read and written.
  std::deque<SharedMemory> all;
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
    : path_(parts.path),
      io_timeout_(parts.io_timeout),
      event_(std::make_shared<WakeEvent>(std::move(event))),
      memory_bytes_(parts.memory.bytes()),
      memory_file_(parts.memory.file_number()),
      token_(parts.greeted.welcome.token),
      log_(token_ == JobToken{} ? nullptr
                                : std::make_unique<RequestLog>(
                                      parts.greeted.welcome.memory_bytes)),
      inbox_(MakeInbox(std::move(parts.memory), [this] { OnPosted(); })),
      heard_(std::make_shared<Heard>(
          parts.greeted.welcome.client, std::move(parts.greeted.rings),
          NewsReader::Parts{
              .inbox = inbox_,
              .dues = dues_,
              .log = log_.get(),
              .relay = event_,
              .memory_bytes = static_cast<int64_t>(memory_bytes_.size()),
              .patience = parts.patience})),
      channel_(std::in_place, std::move(parts.greeted.socket), std::nullopt,
               heard_->rings().requests, heard_->rings().news),
      sender_(*dues_, log_.get()),
      loops_(std::move(parts.greeted.loops), std::move(parts.job),
             parts.io_timeout) {
  sender_.Begin(*channel_);
  heard_->reader.Begin(*channel_);
  thread_ = StartThread("terrace-relay", [this] { Run(); });
}

Relay::~Relay() {
  ends_ = true;
  greeting_end_.End();
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
  absl::Status how = Serve();
  while (MayGoOn(how)) {
    how = GoOn();
    if (how.ok()) how = Serve();
  }
  const bool was_closed = news.closed().has_value();
  news.End(how.ok() ? absl::CancelledError("the runtime was closed")
                    : Lost(path_, how));
  sender_.Pause();
  if (was_closed && channel_.has_value()) AwaitEnd();
  channel_.reset();
}

absl::Status Relay::Serve() {
  absl::Status how;
  while (how.ok() && !heard_->reader.closed().has_value() && !ends_) {
    Await();
    how = Turn();
  }
  return how;
}

bool Relay::MayGoOn(const absl::Status& how) {
  return !how.ok() && std::exchange(has_lost_, false) && log_ != nullptr &&
         !heard_->reader.closed().has_value() && !ends_;
}

// What the daemon said has been heard.
absl::Status Relay::GoOn() {
  sender_.Pause();
  heard_->reader.Pause();
  heard_->clock.SetNews(*heard_->rings().news.words);
  channel_.reset();
  looks_at_ns_ = 0;
  TERRACE_ASSIGN_OR_RETURN(Greeted next, AwaitNext());
  if (FileNumberOf(next.memory) != memory_file_) {
    return absl::DataLossError("another daemon has other memory for it");
  }
  token_ = next.welcome.token;
  loops_.SetView(std::move(next.loops));
  heard_->Add(std::move(next.rings));
  const Rings rings = heard_->rings();
  channel_.emplace(std::move(next.socket), std::nullopt, rings.requests,
                   rings.news);
  TERRACE_RETURN_IF_ERROR(sender_.BeginAgain(*channel_));
  heard_->clock.SetNews(*rings.news.words);
  heard_->reader.Begin(*channel_);
  event_->Set();  // what was posted meanwhile
  return absl::OkStatus();
}

absl::StatusOr<Greeted> Relay::AwaitNext() {
  const absl::Time deadline = SystemClock().Now() + io_timeout_;
  absl::Status why = absl::CancelledError("the runtime ends");
  absl::Duration pause = kFirstPause;
  while (!ends_ && SystemClock().Now() < deadline) {
    absl::StatusOr<Greeted> next =
        Greet(path_, {.version = kVersion, .token = token_}, deadline,
              &greeting_end_);
    if (next.ok()) return next;
    why = next.status();
    // Of a daemon that is not there yet, or has gone again.
    const bool may_come = absl::IsNotFound(why) || absl::IsUnavailable(why) ||
                          absl::IsResourceExhausted(why) ||
                          absl::IsDeadlineExceeded(why);
    if (!may_come) break;
    event_->Clear();
    pollfd wait = {event_->descriptor(), POLLIN, 0};
    if (!ends_) poll(&wait, 1, PollTimeout(SystemClock().Now() + pause));
    pause = std::min(2 * pause, kLongestPause);
  }
  return absl::UnavailableError(absl::StrCat("no other goes on with it: ",
                                             absl::string_view(why.message())));
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
  has_lost_ = absl::IsUnavailable(there);
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
