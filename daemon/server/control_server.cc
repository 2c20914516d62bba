#include "daemon/server/control_server.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

constexpr int kMostEvents = 64;
constexpr int kMostAccepted = 16;  // of a listener, in a turn
constexpr int kMostRequests = 16;  // of a connection, in a turn

OwnDescriptor OpenSpare() {
  return OwnDescriptor::Open("/dev/null", O_RDONLY | O_CLOEXEC);
}

OwnDescriptor OpenEvents() {
  const ForkPause pause;
  return OwnDescriptor::Of(epoll_create1(EPOLL_CLOEXEC));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Create(
    UserTable* users, JobTable* jobs, Log* log, StatusSource status) {
  OwnDescriptor events = OpenEvents();
  OwnDescriptor spare = OpenSpare();
  if (!events.ok() || !spare.ok()) {
    return ErrnoError("the control server", "cannot begin", errno);
  }
  std::unique_ptr<ControlServer> server(
      new ControlServer(users, jobs, log, std::move(status), std::move(events),
                        std::move(spare)));
  TERRACE_RETURN_IF_ERROR(
      server->Watch(EPOLL_CTL_ADD, jobs->descriptor(), EPOLLIN));
  return server;
}

ControlServer::ControlServer(UserTable* users, JobTable* jobs, Log* log,
                             StatusSource status, OwnDescriptor events,
                             OwnDescriptor spare)
    : users_(*users),
      jobs_(*jobs),
      log_(*log),
      refusals_(log),
      status_(std::move(status)),
      events_(std::move(events)),
      spare_(std::move(spare)),
      listings_(jobs),
      evictions_(jobs) {}

absl::Status ControlServer::Watch(int what, int fd, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(events_.get(), what, fd, &event) == 0) return absl::OkStatus();
  return ErrnoError("a control socket", "cannot be watched", errno);
}

absl::Status ControlServer::Listen(PacketListener listener) {
  const int fd = listener.descriptor();
  TERRACE_RETURN_IF_ERROR(Watch(EPOLL_CTL_ADD, fd, EPOLLIN));
  log_.Info(absl::StrCat("listens at ", listener.path()));
  listeners_.emplace(fd, std::move(listener));
  return absl::OkStatus();
}

// A descriptor that is closed is watched no more.
void ControlServer::StopListening() {
  for (auto& [fd, listener] : listeners_) {
    listener.Stop();
    stopped_.push_back(std::move(listener));
  }
  listeners_.clear();
}

void ControlServer::RunOnce(absl::Time now) {
  now_ = now;
  if (now >= listens_again_) SetPaused(false);
  if (now >= drained_by_) {
    drained_by_ = absl::InfiniteFuture();
    jobs_.EndAll();
  }
  std::array<epoll_event, kMostEvents> ready;
  const int count = epoll_wait(events_.get(), ready.data(), kMostEvents, 0);
  for (int i = 0; i < count; ++i) {
    const int fd = ready[static_cast<size_t>(i)].data.fd;
    if (const auto found = listeners_.find(fd); found != listeners_.end()) {
      Accept(found->second);
    } else if (const auto one = sessions_.find(fd); one != sessions_.end()) {
      Serve(one->second, ready[static_cast<size_t>(i)].events);
    } else if (fd == jobs_.descriptor()) {
      ReapJobs();
    }
  }
  jobs_.lending().Serve(now);
  AnswerWaiting();
}

void ControlServer::Accept(PacketListener& listener) {
  for (int i = 0; i < kMostAccepted; ++i) {
    absl::StatusOr<std::optional<PacketSocket>> accepted = listener.Accept();
    if (!accepted.ok()) {
      TurnAway(listener, accepted.status());
      return;
    }
    if (!accepted->has_value()) return;
    Admit(**std::move(accepted));
  }
}

void ControlServer::TurnAway(PacketListener& listener,
                             const absl::Status& why) {
  spare_.Close();
  const bool is_turned_away = listener.Accept().ok();  // and it is closed again
  spare_ = OpenSpare();
  refusals_.Note(absl::StrCat(is_turned_away ? "turned one away: " : "",
                              absl::string_view(why.message())),
                 why.code(), now_);
  // Who waits is ready still, and would be in each turn.
  if (!is_turned_away || !spare_.ok()) SetPaused(true);
}

void ControlServer::SetPaused(bool is_paused) {
  listens_again_ = is_paused ? now_ + kPause : absl::InfiniteFuture();
  const uint32_t events = is_paused ? 0u : uint32_t{EPOLLIN};
  for (const auto& [fd, listener] : listeners_) {
    Watch(EPOLL_CTL_MOD, fd, events).IgnoreError();
  }
}

void ControlServer::Admit(PacketSocket socket) {
  const absl::StatusOr<Peer> peer = socket.peer();
  if (!peer.ok()) {
    log_.Warn(std::string(peer.status().message()));
    return;
  }
  ReapJobs();
  const bool is_operator = users_.IsOperator(socket, *peer);
  absl::Status admitted = CheckPeer(*peer, is_operator);
  if (admitted.ok()) admitted = users_.AddConnection(peer->uid);
  Session session(std::move(socket), *peer, is_operator);
  if (!admitted.ok()) {
    NoteRefusal(*peer, admitted);
    session.Answer({.body = Refusal{admitted}}).IgnoreError();
    return;
  }
  const int fd = session.descriptor();
  const absl::Status watched = Watch(EPOLL_CTL_ADD, fd, EPOLLIN);
  if (!watched.ok()) {
    log_.Warn(std::string(watched.message()));
    users_.RemoveConnection(peer->uid);
    return;
  }
  sessions_.emplace(fd, std::move(session));
}

absl::Status ControlServer::CheckPeer(const Peer& peer,
                                      bool is_operator) const {
  if (peer.pid == 0) {
    return absl::PermissionDeniedError(
        "the process is of a namespace that is not seen here, so that it "
        "cannot be told from its children");
  }
  const size_t most = kMostSessions + (is_operator ? kOperatorsSessions : 0);
  const size_t now = connections();
  if (now < most) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(now, " connections are all that there are"));
}

void ControlServer::NoteRefusal(const Peer& peer, const absl::Status& why) {
  refusals_.Note(absl::StrCat("refused ", PeerText(peer), ": ",
                              absl::string_view(why.message())),
                 why.code(), now_);
}

void ControlServer::Serve(Session& session, uint32_t ready) {
  const int fd = session.descriptor();
  if (session.is_waiting()) {
    const bool has_gone = (ready & (EPOLLHUP | EPOLLERR)) != 0;
    if (has_gone) End(fd);
    return;
  }
  const uint32_t before = session.events();
  absl::Status served = session.Flush();
  if (served.ok()) served = ServeSome(session);
  if (session.descriptor() < 0) {  // it is a job's from here on
    sessions_.erase(fd);
    return;
  }
  const uint32_t after = session.events();
  if (served.ok() && after != before) served = Watch(EPOLL_CTL_MOD, fd, after);
  if (served.ok()) return;
  if (absl::IsUnavailable(served)) {
    log_.Debug(absl::StrCat(PeerText(session.peer()), ": ",
                            absl::string_view(served.message())));
  } else {
    NoteRefusal(session.peer(), served);
  }
  End(fd);
}

absl::Status ControlServer::ServeSome(Session& session) {
  for (int i = 0; i < kMostRequests && !session.has_unread(); ++i) {
    if (session.is_waiting()) break;
    TERRACE_ASSIGN_OR_RETURN(const Session::Request request, session.Next());
    if (request.kind == Session::Request::Kind::kNone) break;
    if (request.kind == Session::Request::Kind::kRefused) {
      NoteRefusal(session.peer(), request.why);
      continue;
    }
    if (std::holds_alternative<Hello>(request.envelope.body)) {
      return BeginJob(session, request.envelope);
    }
    if (std::holds_alternative<TensorsRequest>(request.envelope.body) ||
        std::holds_alternative<EvictionRequest>(request.envelope.body)) {
      TERRACE_RETURN_IF_ERROR(Wait(session, request.envelope));
      continue;
    }
    TERRACE_RETURN_IF_ERROR(
        session.Answer({.sequence = request.envelope.sequence,
                        .body = AnswerOf(session, request.envelope)}));
    TERRACE_RETURN_IF_ERROR(CheckUnread(session));
  }
  return absl::OkStatus();
}

absl::Status ControlServer::CheckUnread(const Session& session) const {
  if (!session.has_unread()) return absl::OkStatus();
  size_t unread = 0;
  for (const auto& [fd, each] : sessions_) {
    if (each.peer().uid == session.peer().uid) unread += each.unread_bytes();
  }
  // One answer is kept, however long.
  const size_t most = kMostUnreadBytes + session.unread_bytes();
  if (unread <= most) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the user's connections have ", unread,
      " bytes of answers that are not read, and the limit is ", most));
}

// A refusal leaves the connection as it is.
absl::Status ControlServer::BeginJob(Session& session,
                                     const Envelope& request) {
  const Peer peer = session.peer();
  const Hello& hello = std::get<Hello>(request.body);
  const absl::StatusOr<JobTable::Memory> admitted = jobs_.Admit(peer, hello);
  if (!admitted.ok()) {
    NoteRefusal(peer, admitted.status());
    return session.Answer({request.sequence, Refusal{admitted.status()}});
  }
  Watch(EPOLL_CTL_DEL, session.descriptor(), 0).IgnoreError();
  const absl::Status begun = jobs_.Begin(std::move(session).TakeSocket(), peer,
                                         request.sequence, hello, *admitted);
  if (!begun.ok()) {
    NoteRefusal(peer, begun);
    users_.RemoveConnection(peer.uid);
  }
  return absl::OkStatus();
}

void ControlServer::ReapJobs() {
  for (const JobTable::Ended& each : jobs_.Reap()) {
    const bool is_refusal =
        !absl::IsUnavailable(each.how) && !absl::IsCancelled(each.how);
    if (is_refusal) NoteRefusal(each.peer, each.how);
  }
  for (const RefusalNotes::Note& each : jobs_.TakeRefusals()) {
    NoteRefusal(each.peer, each.why);
  }
  jobs_.TakeStats();
}

EnvelopeBody ControlServer::AnswerOf(const Session& session,
                                     const Envelope& request) {
  if (std::holds_alternative<StatusRequest>(request.body)) {
    return StatusFor(session);
  }
  if (const auto* const drain = std::get_if<DrainRequest>(&request.body)) {
    const absl::Status drained = Drain(session, *drain);
    if (drained.ok()) return StatusFor(session);
    NoteRefusal(session.peer(), drained);
    return Refusal{drained};
  }
  return Refusal{absl::InvalidArgumentError(
      "a control message that is an answer, where a request is due")};
}

DaemonStatus ControlServer::StatusFor(const Session& session) {
  const uid_t uid = session.peer().uid;
  DaemonStatus status = status_();
  std::vector<UserTable::Use> uses;
  if (session.is_operator()) {
    uses = users_.All();
  } else {
    uses.push_back(users_.UseOf(uid));
  }
  for (const UserTable::Use& each : uses) {
    status.users.push_back({each.uid, static_cast<int32_t>(each.connections),
                            static_cast<int32_t>(each.connection_limit)});
  }
  const std::optional<uid_t> owner = session.sees();
  status.jobs = jobs_.JobsOf(owner);
  std::erase_if(status.stopped, [&](const DaemonStatus::Loop& loop) {
    if (loop.process == 0 || session.is_operator()) return false;
    const std::optional<JobName> whose = jobs_.OwnerOf(loop.process);
    return !whose.has_value() || whose->uid != uid;
  });
  // For who asks again. Whoever asks without end costs jobs' movers no more.
  jobs_.AskStats(owner, now_, kStatsPause);
  return status;
}

absl::Status ControlServer::Wait(Session& session, const Envelope& request) {
  const std::optional<uid_t> owner = session.sees();
  const int fd = session.descriptor();
  if (const auto* const tensors = std::get_if<TensorsRequest>(&request.body)) {
    listings_.Add({fd, request.sequence, owner, *tensors}, now_);
  } else {
    const absl::Status added = evictions_.Add(
        {fd, request.sequence, owner, std::get<EvictionRequest>(request.body)},
        now_);
    if (!added.ok()) {
      NoteRefusal(session.peer(), added);
      return session.Answer(
          {.sequence = request.sequence, .body = Refusal{added}});
    }
  }
  session.SetWaiting(true);
  return absl::OkStatus();
}

void ControlServer::AnswerWaiting() {
  for (TensorListings::Answer& each : listings_.Take(now_)) {
    AnswerLate(each.fd,
               {.sequence = each.sequence, .body = std::move(each.page)});
  }
  for (JobEvictions::Answer& each : evictions_.Take(now_)) {
    AnswerLate(each.fd,
               {.sequence = each.sequence, .body = std::move(each.report)});
  }
}

void ControlServer::AnswerLate(int fd, const Envelope& answer) {
  const auto found = sessions_.find(fd);
  if (found == sessions_.end()) return;
  Session& session = found->second;
  session.SetWaiting(false);
  absl::Status answered = session.Answer(answer);
  if (answered.ok()) answered = CheckUnread(session);
  if (answered.ok()) {
    answered = Watch(EPOLL_CTL_MOD, fd, session.events());
  }
  if (!answered.ok()) End(fd);
}

absl::Status ControlServer::Drain(const Session& session,
                                  const DrainRequest& request) {
  if (!session.is_operator()) {
    return absl::PermissionDeniedError(
        "a daemon is drained by root, its own user and its operators");
  }
  drains_ = true;
  jobs_.Drain();
  drained_by_ = request.seconds < 0 ? absl::InfiniteFuture()
                                    : now_ + absl::Seconds(request.seconds);
  log_.Info(absl::StrCat(PeerText(session.peer()), " has it drain: ",
                         jobs_.size(), " processes of jobs are here"));
  return absl::OkStatus();
}

void ControlServer::End(int fd) {
  const auto found = sessions_.find(fd);
  if (found == sessions_.end()) return;
  listings_.Forget(fd);
  evictions_.Forget(fd);
  users_.RemoveConnection(found->second.peer().uid);
  sessions_.erase(found);
}

}  // namespace terrace
