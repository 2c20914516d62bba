#include "daemon/jobs/job_session.h"

#include <poll.h>

#include <array>
#include <cstddef>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/threads/own_thread.h"
#include "daemon/wire/ring/spin.h"

namespace terrace {
namespace {

// Of disks, to end what they have begun.
constexpr absl::Duration kClosePatience = absl::Seconds(30);
// That are heard in one turn.
constexpr int kMostMessages = 16;
// Of a message that is short, and of each of its groups.
constexpr size_t kFewRequests = 64;
constexpr size_t kFewWants = 1024;

// What the session's thread serves itself, between two answers to who watches
// it. All else takes as long as it takes, or waits for the mover.
bool IsShort(const JobRequests& requests) {
  const auto is_short = [](const auto& request) {
    using Body = std::decay_t<decltype(request)>;
    if constexpr (requires { request.wants; }) {
      return request.wants.size() <= kFewWants;
    } else {
      return !std::is_same_v<Body, RegisterRequest> &&
             !std::is_same_v<Body, CloseRequest>;
    }
  };
  return requests.requests.size() <= kFewRequests &&
         absl::c_all_of(requests.requests, [&](const JobRequest& each) {
           return std::visit(is_short, each);
         });
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobSession>> JobSession::Start(Parts parts) {
  absl::StatusOr<WakeEvent> event = WakeEvent::Make();
  if (!event.ok()) return Refuse(parts.socket, parts.sequence, event.status());
  std::unique_ptr<JobSession> session(
      new JobSession(std::move(parts), *std::move(event)));
  try {
    session->thread_ = StartThread("terrace-session",
                                   [served = session.get()] { served->Run(); });
  } catch (const std::system_error& error) {
    return session->Refuse(absl::ResourceExhaustedError(
        absl::StrCat("cannot start a session's thread: ", error.what())));
  }
  return session;
}

JobSession::JobSession(Parts parts, WakeEvent event)
    : parts_(std::move(parts)),
      event_(std::make_shared<const WakeEvent>(std::move(event))),
      session_(parts_.loops->NewSession()),
      loop_(parts_.loops->Add({.kind = "session",
                               .process = parts_.peer.pid,
                               .session = session_})),
      spins_(HasProcessorsToSpin()) {
  loop_.heartbeat().SetAway(true);  // memory may take minutes
}

JobSession::~JobSession() {
  End();
  if (thread_.joinable()) thread_.join();
}

void JobSession::End() {
  ends_ = true;
  event_->Set();
}

void JobSession::AskStats() {
  asks_stats_ = true;
  event_->Set();
}

void JobSession::AskPage(TensorId after) {
  page_after_ = after.value;
  asks_page_ = true;
  event_->Set();
}

void JobSession::Evict(const EvictionOrder& order) { eviction_.Put(order); }

void JobSession::Lend(const LendOrder& order) { lending_.Put(order); }

void JobSession::AskLoops(absl::Time now) {
  if (loop_.heartbeat().Ask(now)) event_->Set();
}

void JobSession::Run() { parts_.on_end(Serve()); }

JobSession::Ended JobSession::Serve() {
  RuntimeLoops loops(parts_.loops, parts_.peer.pid, session_);
  absl::StatusOr<RingFile> rings = RingFile::Make();
  if (!rings.ok()) return {.how = Refuse(rings.status())};
  rings_.emplace(*std::move(rings));
  absl::StatusOr<OwnLoopPage> page = parts_.pages->Add(session_);
  if (!page.ok()) return {.how = Refuse(page.status())};
  absl::StatusOr<JobRuntime> made = parts_.make_runtime(loops);
  if (!made.ok()) return {.how = Refuse(made.status())};
  const std::shared_ptr<JobMemory> memory = made->memory;
  Ended end = Serve(*std::move(made), loops, page->TakeFile());
  end.charged_bytes = memory->charged_bytes();
  return end;
}

JobSession::Ended JobSession::Serve(JobRuntime made, RuntimeLoops& loops,
                                    OwnDescriptor page_file) {
  LocalRuntime& runtime = *made.runtime;
  const auto outbox = std::make_shared<AnswerOutbox>(event_);
  JobClient client(made, outbox, parts_.most_in_flight);
  const std::shared_ptr<RuntimeProbe> probe =
      RuntimeProbe::Join(runtime, parts_.boxes);
  Served served{runtime, loops, *probe, client, *outbox};
  Ended end;
  end.has_begun = true;
  end.how = Greet(made, client, std::move(page_file));
  const Rings rings = rings_->rings();
  MessageChannel& channel = channel_.emplace(
      std::move(parts_.socket), parts_.peer, rings.news, rings.requests);
  loop_.heartbeat().SetAway(false);
  while (end.how.ok()) {
    const bool has_rung = Await(channel, served);
    end.how = Turn(channel, served, has_rung);
  }
  loop_.heartbeat().SetAway(true);  // disks have kClosePatience
  if (!absl::IsUnavailable(end.how)) {
    // Why it ends, if the process reads it.
    channel.Send({.body = Refusal{end.how}}).IgnoreError();
  }
  // A queue that opens meanwhile is closed at the second try: none opens once
  // closing has begun.
  absl::Status closed;
  for (int i = 0; i < 2; ++i) {
    end.process_has_memory = client.End();
    closed = runtime.Close(absl::Now() + kClosePatience);
    if (!absl::IsFailedPrecondition(closed)) break;
  }
  end.transfers_have_memory =
      runtime.mover().abandoned() || absl::IsFailedPrecondition(closed);
  end.last = runtime.GetStats();
  HostArena& arena = runtime.arena();
  if (end.transfers_have_memory) return end;
  // Nobody else looks at it: what a process keeps mapped has no pages then.
  if (!end.process_has_memory) {
    arena.Empty();
  } else {
    end.memory = arena.memory_file().Share();
  }
  return end;
}

absl::Status JobSession::Refuse(PacketSocket& socket, uint64_t sequence,
                                const absl::Status& why) {
  TERRACE_ASSIGN_OR_RETURN(
      const std::vector<std::byte> refusal,
      Encode({.sequence = sequence, .body = Refusal{why}}));
  socket.Send(refusal).IgnoreError();
  return why;
}

absl::Status JobSession::Greet(JobRuntime& made, const JobClient& client,
                               OwnDescriptor page) {
  const HostArena& arena = made.runtime->arena();
  Welcome welcome;
  welcome.client = client.id();
  welcome.memory_bytes = static_cast<int64_t>(arena.bytes().size());
  welcome.file_bytes = arena.memory_file_bytes();
  if (made.image != nullptr) welcome.token = made.image->token();
  TERRACE_ASSIGN_OR_RETURN(
      const std::vector<std::byte> bytes,
      Encode({.sequence = parts_.sequence, .body = welcome}));
  TERRACE_ASSIGN_OR_RETURN(
      const bool sent, parts_.socket.SendWith(bytes, {&arena.memory_file(),
                                                      &rings_->file(), &page}));
  if (sent) return absl::OkStatus();
  return absl::UnavailableError("who asked for memory does not read");
}

bool JobSession::Await(MessageChannel& channel, Served& served) {
  // Who has just asked may ask again.
  if (std::exchange(has_heard_, false) && spins_) {
    Spin([&] { return channel.HasNews() || !served.outbox.IsEmpty(); });
  }
  std::array<pollfd, 2> waits = {
      {{event_->descriptor(), POLLIN, 0}, {channel.descriptor(), POLLIN, 0}}};
  if (Rest(channel, served)) {
    poll(waits.data(), waits.size(), /*timeout=*/-1);
    served.outbox.Stir();
  }
  channel.StirForNews();
  if (waits[0].revents != 0) event_->Clear();
  return waits[1].revents != 0;
}

bool JobSession::Rest(MessageChannel& channel, Served& served) {
  const bool sends = !channel.is_full();
  const bool reads = sends && !served.client.is_closed();
  if (reads && channel.HasNews()) return false;
  // The outbox last: what comes there while it rests costs a call.
  return (!reads || channel.RestForNews()) && channel.RestForRoom() &&
         (!sends || served.outbox.Rest());
}

absl::Status JobSession::Turn(MessageChannel& channel, Served& served,
                              bool has_rung) {
  JobClient& client = served.client;
  if (loop_.heartbeat().Beat()) {
    served.loops.Ask(served.runtime, SystemClock().Now());
  }
  if (asks_stats_.exchange(false)) served.probe.AskStats();
  if (asks_page_.exchange(false)) served.probe.AskPage({page_after_.load()});
  if (const auto order = eviction_.Take()) served.probe.Evict(*order);
  // What waits to be claimed is as it was when its daemon ended.
  if (!client.waits_for_claim()) {
    if (const auto order = lending_.Take()) served.probe.Lend(*order);
  }
  if (ends_) return absl::CancelledError("the daemon ends");
  const absl::Status there = has_rung ? channel.HearBells() : absl::OkStatus();
  if (absl::IsUnavailable(there)) return HearLast(channel, served, there);
  TERRACE_RETURN_IF_ERROR(there);
  TERRACE_RETURN_IF_ERROR(channel.Flush());
  for (int i = 0; i < kMostMessages; ++i) {
    if (client.is_closed() || channel.is_full()) break;
    TERRACE_ASSIGN_OR_RETURN(const bool has_heard, Hear(channel, served));
    if (!has_heard) break;
    has_heard_ = true;
    TERRACE_RETURN_IF_ERROR(Answer(channel, client));
  }
  TERRACE_RETURN_IF_ERROR(Answer(channel, client));
  if (!client.is_closed() || channel.has_unsent()) return absl::OkStatus();
  return absl::UnavailableError("the process has closed its runtime");
}

absl::Status JobSession::Answer(MessageChannel& channel, JobClient& client) {
  if (channel.is_full()) return absl::OkStatus();
  for (JobNews& news : client.TakeNews()) {
    TERRACE_RETURN_IF_ERROR(channel.Send({.body = std::move(news)}));
  }
  return absl::OkStatus();
}

// What a process said before it went counts: the ends of its pins above all,
// which else would be its own for as long as it lives.
absl::Status JobSession::HearLast(MessageChannel& channel, Served& served,
                                  const absl::Status& gone) {
  channel.EndReceiving();
  while (true) {
    TERRACE_ASSIGN_OR_RETURN(const bool has_heard, Hear(channel, served));
    if (!has_heard) return gone;
  }
}

absl::StatusOr<bool> JobSession::Hear(MessageChannel& channel, Served& served) {
  Envelope message;
  TERRACE_ASSIGN_OR_RETURN(const bool has_heard, channel.Receive(&message));
  if (!has_heard) return false;
  auto* const requests = std::get_if<JobRequests>(&message.body);
  if (requests == nullptr) {
    return absl::InvalidArgumentError(
        "a message that is none of a job's process, on its connection");
  }
  TERRACE_RETURN_IF_ERROR(Post(std::move(*requests), served));
  return true;
}

absl::Status JobSession::Post(JobRequests requests, Served& served) {
  JobClient& client = served.client;
  // Pages that a process asks for are made meanwhile, or what it had before is
  // put in its place.
  const bool takes_long =
      absl::c_any_of(requests.requests, [](const JobRequest& each) {
        return std::holds_alternative<GrowRequest>(each) ||
               std::holds_alternative<ClaimRequest>(each);
      });
  if (takes_long) {
    loop_.heartbeat().SetAway(true);
    const absl::Status posted = client.Post(std::move(requests));
    loop_.heartbeat().SetAway(false);
    return posted;
  }
  if (!IsShort(requests)) return client.Post(std::move(requests));
  absl::Status posted;
  served.runtime.PostAndServe(
      [&] { posted = client.Post(std::move(requests)); });
  return posted;
}

}  // namespace terrace
