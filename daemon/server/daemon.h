// A Daemon owns a host's memory and drives, as its configuration says, and
// answers the processes that connect to it, until it is told to end.
//
//   auto daemon = Daemon::Start(options, std::move(manager), &log);
//   Signals signals;
//   return (*daemon)->Run(&signals);
//
// It belongs to one thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/config/daemon_config.h"
#include "daemon/jobs/checksum_pool.h"
#include "daemon/jobs/media/medium_source.h"
#include "daemon/log/log.h"
#include "daemon/metrics/metrics_board.h"
#include "daemon/metrics/metrics_report.h"
#include "daemon/metrics/metrics_responder.h"
#include "daemon/server/control_server.h"
#include "daemon/server/holdings.h"
#include "daemon/server/holdings_end.h"
#include "daemon/server/job_table.h"
#include "daemon/server/scrape.h"
#include "daemon/server/service_manager.h"
#include "daemon/server/signals.h"
#include "daemon/server/user_table.h"
#include "daemon/watch/loop_pages.h"
#include "daemon/watch/loop_table.h"
#include "daemon/watch/loop_watch.h"

namespace terrace {

struct DaemonOptions {
  std::string config_file;
  std::string socket;  // instead of the configuration's; "": as that has it
  std::string default_socket;  // where neither says one; "": there is none
  // Of far and persistent memory; null: the host's. A test has one of what its
  // machine lacks.
  std::shared_ptr<const MediumSource> media;
};

class Daemon {
 public:
  // A mover that has not answered for so long has stopped.
  static constexpr absl::Duration kMostSilence = absl::Seconds(2);

  // Takes the socket first, and gives it up last, so that of two daemons at one
  // socket the second one takes nothing. Errors: those of the configuration, of
  // PacketListener and of Holdings::Open. `log` outlives the daemon; `loops`
  // are where it is watched.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(
      DaemonOptions options, ServiceManager manager, Log* log,
      std::shared_ptr<LoopTable> loops);
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Serves until SIGTERM or SIGINT, then ends within the configuration's
  // deadline. OK: all has ended. DeadlineExceeded or Cancelled (a second
  // signal): threads are left that do not end, so that the process is to end
  // without waiting for them; else the error of Runtime::Close.
  absl::Status Run(Signals* signals);

 private:
  Daemon(DaemonOptions options, DaemonConfig config, UserTable users,
         ServiceManager manager, Log* log, std::shared_ptr<LoopTable> loops);

  absl::Status Listen();
  // What a daemon before this one had for processes that live still.
  void OpenKept();
  // Tells metrics from here on, where the configuration says so; and watches
  // the loops.
  absl::Status BeginWatch();
  absl::Status ServeOnce(Signals& signals);
  void On(int signal);
  void Reload();
  void TellAlive();
  // One line of the log for each loop that has stopped or turns again.
  void TellLoops();
  DaemonStatus Status() const;
  MetricsReport Metrics() const;
  // Null: it has none yet.
  std::shared_ptr<const Holdings::Report> report() const;
  absl::Duration silence() const;
  // Of what ends: it has, or its deadline has passed.
  bool IsOver() const;
  // As a service manager and a log have it.
  std::string Sentence() const;

  const DaemonOptions options_;
  DaemonConfig config_;
  UserTable users_;
  ServiceManager manager_;
  std::map<std::string, OwnDescriptor> kept_files_;  // until they are opened
  Log& log_;
  // The threads of these end before what they look at.
  const std::shared_ptr<LoopTable> loops_;
  const std::shared_ptr<LoopPages> pages_ = std::make_shared<LoopPages>();
  const WatchedLoop loop_ = loops_->Add({"server"});
  std::unique_ptr<ChecksumPool> pool_;
  WatchedLoop responder_loop_;
  std::unique_ptr<MetricsBoard> board_;
  std::unique_ptr<LoopWatch> watch_;
  std::unique_ptr<MetricsResponder> responder_;  // null: nobody is told
  std::unique_ptr<Holdings> holdings_;           // until it drains
  std::unique_ptr<JobTable> jobs_;
  std::unique_ptr<ControlServer> server_;
  std::unique_ptr<Scrape> scrape_;
  absl::Time next_alive_;           // infinite: nobody counts
  std::optional<HoldingsEnd> end_;  // once it drains
};

}  // namespace terrace
