#include "daemon/server/daemon.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "daemon/config/path_check.h"
#include "daemon/config/user_names.h"
#include "daemon/wire/default_socket.h"
#include "daemon/wire/poll_timeout.h"
#include "terrace/version.h"

namespace terrace {
namespace {

constexpr char kControlName[] = "control";  // of an inherited socket
// For transfers that a daemon before this one had under way.
constexpr absl::Duration kKeptPatience = absl::Seconds(30);

absl::StatusOr<std::string> SocketOf(const DaemonOptions& options,
                                     const DaemonConfig& config) {
  for (const std::string& each :
       {options.socket, config.service.socket, options.default_socket}) {
    if (!each.empty()) return each;
  }
  return absl::InvalidArgumentError(
      "there is no XDG_RUNTIME_DIR, and no socket is named: give --socket PATH "
      "or write socket = \"PATH\" in the configuration");
}

std::string FaultOf(const std::shared_ptr<const Holdings::Report>& report,
                    const std::string& tier) {
  if (report == nullptr) return "";
  for (const TierStats& each : report->stats.tiers) {
    if (each.name == tier) return std::string(each.write_error.message());
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(
    DaemonOptions options, ServiceManager manager, Log* log,
    std::shared_ptr<LoopTable> loops) {
  TERRACE_ASSIGN_OR_RETURN(DaemonConfig config,
                           ReadDaemonConfig(options.config_file));
  TERRACE_ASSIGN_OR_RETURN(UserTable users, UserTable::Make(config));
  TERRACE_RETURN_IF_ERROR(CheckPaths(config));
  log->SetLevel(config.service.log);
  if (options.media == nullptr) {
    options.media = MakeHostMedia(config.Memory());
  }
  std::unique_ptr<Daemon> daemon(
      new Daemon(std::move(options), std::move(config), std::move(users),
                 std::move(manager), log, std::move(loops)));
  TERRACE_ASSIGN_OR_RETURN(daemon->pool_,
                           ChecksumPool::Create(*daemon->loops_));
  TERRACE_ASSIGN_OR_RETURN(
      daemon->jobs_,
      JobTable::Create(
          daemon->config_,
          {.users = &daemon->users_,
           .pool = daemon->pool_.get(),
           .media = daemon->options_.media.get(),
           .store = daemon->manager_.keeps() ? &daemon->manager_ : nullptr,
           .loops = daemon->loops_,
           .pages = daemon->pages_}));
  TERRACE_ASSIGN_OR_RETURN(
      daemon->server_,
      ControlServer::Create(&daemon->users_, daemon->jobs_.get(), log,
                            [made = daemon.get()] { return made->Status(); }));
  TERRACE_RETURN_IF_ERROR(daemon->Listen());
  TERRACE_RETURN_IF_ERROR(daemon->BeginWatch());
  // Before what killed jobs have left is removed.
  daemon->OpenKept();
  TERRACE_ASSIGN_OR_RETURN(
      daemon->holdings_,
      Holdings::Open(daemon->config_,
                     {.pool = *daemon->pool_,
                      .media = *daemon->options_.media,
                      .ledger = daemon->jobs_->ledger(),
                      .loops = daemon->loops_},
                     [made = daemon.get()] { made->TellLoops(); }));
  return daemon;
}

Daemon::Daemon(DaemonOptions options, DaemonConfig config, UserTable users,
               ServiceManager manager, Log* log,
               std::shared_ptr<LoopTable> loops)
    : options_(std::move(options)),
      config_(std::move(config)),
      users_(std::move(users)),
      manager_(std::move(manager)),
      log_(*log),
      loops_(std::move(loops)),
      next_alive_(manager_.patience() < absl::InfiniteDuration()
                      ? absl::InfinitePast()
                      : absl::InfiniteFuture()) {
  loop_.heartbeat().SetAway(true);  // until it serves
}

absl::Status Daemon::Listen() {
  bool listens = false;
  for (ServiceManager::Inherited& each : manager_.TakeInherited()) {
    if (!KeyOf(each.name).empty()) {
      kept_files_.emplace(each.name, std::move(each.descriptor));
      continue;
    }
    if (each.name != kControlName) {
      return absl::InvalidArgumentError(
          absl::StrCat("a descriptor '", each.name,
                       "' was inherited; known: ", kControlName));
    }
    TERRACE_ASSIGN_OR_RETURN(
        PacketListener listener,
        PacketListener::Inherit(std::move(each.descriptor)));
    TERRACE_RETURN_IF_ERROR(server_->Listen(std::move(listener)));
    listens = true;
  }
  if (listens && !options_.socket.empty()) {
    log_.Warn("listens at what it inherited, and not at --socket");
  }
  if (listens) return absl::OkStatus();
  ListenOptions own;
  TERRACE_ASSIGN_OR_RETURN(own.path, SocketOf(options_, config_));
  TERRACE_ASSIGN_OR_RETURN(own.group, GroupOf(config_));
  if (own.path == options_.default_socket) {
    TERRACE_RETURN_IF_ERROR(MakeFolderOf(own.path));
  }
  TERRACE_ASSIGN_OR_RETURN(PacketListener listener, PacketListener::Make(own));
  return server_->Listen(std::move(listener));
}

void Daemon::OpenKept() {
  if (kept_files_.empty()) return;
  if (!manager_.keeps()) {
    log_.Warn("what was kept of jobs is lost: nobody says that it is kept on");
    return kept_files_.clear();
  }
  const absl::Time deadline = SystemClock().Now() + kKeptPatience;
  for (const absl::Status& each :
       jobs_->kept().Open(std::exchange(kept_files_, {}), deadline)) {
    log_.Warn(absl::StrCat("what was kept of a job is lost: ",
                           absl::string_view(each.message())));
  }
  log_.Info(absl::StrCat("has what was kept for ", jobs_->kept().size(),
                         " processes, which may go on"));
}

absl::Status Daemon::BeginWatch() {
  TERRACE_ASSIGN_OR_RETURN(board_, MetricsBoard::Make());
  scrape_ = std::make_unique<Scrape>(board_.get(), jobs_.get(),
                                     [this] { return Metrics(); });
  const auto set = [](const WakeEvent& event) {
    return [set = &event] { set->Set(); };
  };
  std::vector<LoopWatch::Asked> asked = {
      {{&loop_.heartbeat()}, set(board_->for_server())},
      {{&log_.heartbeat()}, [&log = log_] { log.Wake(); }},
      {pool_->heartbeats(), [&pool = *pool_] { pool.Wake(); }}};
  if (config_.service.metrics.has_value()) {
    responder_loop_ = loops_->Add({"metrics"});
    asked.push_back(
        {{&responder_loop_.heartbeat()}, set(board_->for_responder())});
  }
  TERRACE_ASSIGN_OR_RETURN(watch_,
                           LoopWatch::Start(loops_, pages_, std::move(asked)));
  if (!config_.service.metrics.has_value()) return absl::OkStatus();
  TERRACE_ASSIGN_OR_RETURN(const std::optional<gid_t> group, GroupOf(config_));
  TERRACE_ASSIGN_OR_RETURN(
      MetricsListener listener,
      MetricsListener::Make(*config_.service.metrics, group));
  log_.Info(absl::StrCat("tells metrics at ", listener.text()));
  scrape_->Publish();
  TERRACE_ASSIGN_OR_RETURN(
      responder_,
      MetricsResponder::Start(std::move(listener),
                              {.board = board_.get(),
                               .loops = loops_.get(),
                               .watch = watch_.get(),
                               .heartbeat = &responder_loop_.heartbeat()}));
  return absl::OkStatus();
}

absl::Status Daemon::Run(Signals* signals) {
  board_->SetPhase(DaemonPhase::kServing);
  loop_.heartbeat().SetAway(false);
  manager_.TellReady(Sentence());
  log_.Info(Sentence());
  while (!IsOver()) TERRACE_RETURN_IF_ERROR(ServeOnce(*signals));
  if (jobs_->size() == 0) return end_->status();
  return absl::DeadlineExceededError(absl::StrCat(
      jobs_->size(), " jobs' processes have not ended within the deadline"));
}

bool Daemon::IsOver() const {
  if (!end_.has_value() || !end_->IsOver()) return false;
  return jobs_->size() == 0 || SystemClock().Now() >= end_->deadline();
}

absl::Status Daemon::ServeOnce(Signals& signals) {
  absl::Time next = std::min({next_alive_, server_->next(), scrape_->next()});
  std::array<pollfd, 4> waits = {
      {{signals.descriptor(), POLLIN, 0},
       {server_->descriptor(), POLLIN, 0},
       {board_->for_server().descriptor(), POLLIN, 0},
       {-1, POLLIN, 0}}};
  if (end_.has_value()) {
    if (!end_->IsOver()) waits[3].fd = end_->descriptor();
    next = std::min(next, end_->deadline());
  }
  poll(waits.data(), waits.size(), PollTimeout(next));
  while (const std::optional<int> signal = signals.Next()) {
    if (end_.has_value() && *signal != SIGHUP) {
      return absl::CancelledError("told to end a second time");
    }
    On(*signal);
  }
  board_->for_server().Clear();
  if (loop_.heartbeat().Beat()) {
    jobs_->AskLoops(SystemClock().Now());
    jobs_->Sweep();
    if (holdings_ != nullptr) holdings_->AskLoop(SystemClock().Now());
    TellLoops();
  }
  server_->RunOnce(SystemClock().Now());
  if (server_->drains() && !end_.has_value()) {
    board_->SetPhase(DaemonPhase::kDraining);
  }
  scrape_->RunOnce(SystemClock().Now());
  if (SystemClock().Now() >= next_alive_) TellAlive();
  return absl::OkStatus();
}

// A mover that has stopped is not alive, however well this thread turns. One
// that ends has until its deadline.
void Daemon::TellAlive() {
  if (end_.has_value() || silence() < kMostSilence) manager_.TellAlive();
  next_alive_ = SystemClock().Now() + manager_.patience() / 3;
}

void Daemon::On(int signal) {
  if (end_.has_value()) return;  // and nothing is read again
  if (signal == SIGHUP) return Reload();
  board_->SetPhase(DaemonPhase::kEnding);
  server_->StopListening();
  const absl::Duration patience = absl::Seconds(config_.service.drain_seconds);
  jobs_->EndAll();
  end_.emplace(std::move(holdings_), SystemClock().Now() + patience);
  manager_.TellStopping(Sentence(), patience);
  log_.Info(absl::StrCat("told to end; it takes ",
                         config_.service.drain_seconds, " seconds at most"));
}

void Daemon::Reload() {
  manager_.TellReloading();
  absl::StatusOr<DaemonConfig> config = ReadDaemonConfig(options_.config_file);
  absl::StatusOr<UserTable> users =
      config.ok() ? UserTable::Make(*config) : config.status();
  if (!users.ok()) {
    log_.Error(absl::StrCat("the configuration stays as it was: ",
                            absl::string_view(users.status().message())));
  } else {
    users_.SetLimits(*users);
    jobs_->SetLimits(*config);
    log_.SetLevel(config->service.log);
    if (config->TierSpecs() != config_.TierSpecs()) {
      log_.Warn(
          "tiers are others than at the start: they are taken by the "
          "next one");
    }
    log_.Info("quotas and the log's level are read again");
  }
  manager_.TellReady(Sentence());
}

void Daemon::TellLoops() {
  loops_->TellChanges(SystemClock().Now(),
                      [this](const LoopName& loop, bool has_stopped) {
                        const std::string text = LoopText(loop);
                        if (has_stopped) {
                          log_.Error(absl::StrCat("has stopped: ", text));
                        } else {
                          log_.Warn(absl::StrCat("turns again: ", text));
                        }
                      });
}

MetricsReport Daemon::Metrics() const {
  MetricsReport metrics;
  metrics.version = kVersion;
  metrics.phase = board_->phase();
  metrics.jobs = jobs_->Metrics();
  metrics.totals = jobs_->Totals();
  metrics.unanswered = jobs_->unanswered();
  for (const DaemonConfig::Tier& each : config_.tiers) {
    const std::string name = TierName(each.spec);
    MetricsReport::Tier& tier = metrics.tiers.emplace_back();
    tier.name = name;
    tier.is_memory = each.spec.kind == TierKind::kDram;
    tier.budget_bytes = each.spec.budget_bytes;
    tier.used_bytes = jobs_->ledger().UsedOf(name);
    tier.is_degraded = !FaultOf(report(), name).empty();
    for (const MetricsReport::Job& job : metrics.jobs) {
      for (const MetricsReport::JobTier& part : job.tiers) {
        if (part.name == name) tier.is_degraded |= part.is_degraded;
      }
    }
  }
  for (const UserTable::Use& each : users_.All()) {
    metrics.users.push_back(
        {each.uid, each.connections, each.connection_limit});
  }
  metrics.connections = static_cast<int64_t>(server_->connections());
  metrics.refusals = server_->refusals();
  metrics.loops = loops_->size();
  metrics.process = ReadOwnProcess();
  return metrics;
}

DaemonStatus Daemon::Status() const {
  DaemonStatus status;
  status.version = kVersion;
  status.pid = getpid();
  const bool drains =
      server_->drains() && board_->phase() == DaemonPhase::kServing;
  status.phase = PhaseName(drains ? DaemonPhase::kDraining : board_->phase());
  status.silent_for_ms = absl::ToInt64Milliseconds(silence());
  status.loops = loops_->size();
  const absl::Time now = SystemClock().Now();
  const auto add = [&status](std::string name, int64_t process,
                             absl::Duration silence) {
    status.stopped.push_back(
        {std::move(name), process, absl::ToInt64Milliseconds(silence)});
  };
  loops_->ForEachStopped(now,
                         [&](const LoopName& loop, absl::Duration silence) {
                           add(LoopText(loop), loop.process, silence);
                         });
  if (watch_->HasStopped(now)) add("watch", 0, watch_->SilenceAt(now));
  const std::shared_ptr<const Holdings::Report> newest = report();
  for (const DaemonConfig::Tier& each : config_.tiers) {
    const std::string name = TierName(each.spec);
    status.tiers.push_back({.name = name,
                            .budget_bytes = each.spec.budget_bytes,
                            .used_bytes = jobs_->ledger().UsedOf(name),
                            .fault = FaultOf(newest, name)});
  }
  return status;
}

std::shared_ptr<const Holdings::Report> Daemon::report() const {
  if (end_.has_value()) return end_->report();
  return holdings_ == nullptr ? nullptr : holdings_->report();
}

absl::Duration Daemon::silence() const {
  return std::max(absl::ZeroDuration(), SystemClock().Now() - report()->at);
}

std::string Daemon::Sentence() const {
  if (end_.has_value()) return "ends";
  std::vector<std::string> tiers;
  for (const DaemonConfig::Tier& each : config_.tiers) {
    tiers.push_back(TierText(each.spec));
  }
  return absl::StrCat("serves ", absl::StrJoin(tiers, ", "));
}

}  // namespace terrace
