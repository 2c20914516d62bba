// Runtime::Connect: a runtime that a host's daemon has for this process.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "daemon/client/control_client.h"
#include "daemon/client/greeting.h"
#include "daemon/client/relay.h"
#include "daemon/wire/lending_patience.h"
#include "runtime/client/asking_runtime.h"
#include "terrace/runtime.h"
#include "terrace/version.h"
#include "tiers/left_behind.h"

namespace terrace {
namespace {

constexpr absl::Duration kDestructorPatience = absl::Seconds(30);
// Of a daemon that has more to do than to answer.
constexpr absl::Duration kAnswerPatience = absl::Seconds(10);
// For the memory to be taken, beside what its pages take.
constexpr absl::Duration kConnectPatience = absl::Seconds(60);

class ConnectedRuntime final : public AskingRuntime<Runtime> {
 public:
  ConnectedRuntime(std::unique_ptr<Relay> relay, ThreadPool pool)
      : relay_(std::move(relay)),
        pool_(std::move(pool)),
        client_(relay_->clock(), relay_->inbox(), relay_->port(),
                {{kDramTier, {.data = relay_->memory()}}}) {}

  ~ConnectedRuntime() override {
    if (!client_.IsOwnProcess()) {
      // A forked child has no such thread, and the connection is its parent's.
      LeaveBehind(std::shared_ptr<Relay>(std::move(relay_)));
      return;
    }
    client_
        .Close(SystemClock().Now() + kDestructorPatience, /*force=*/true,
               kAnswerPatience)
        .IgnoreError();
  }

  absl::Status GrowMemory(int64_t bytes) override {
    return client_.Grow(bytes);
  }

  Stats GetStats() const override {
    if (!client_.IsOwnProcess()) return Stats();
    absl::StatusOr<Stats> now = client_.Ask<Stats>(StatsRequest());
    return now.ok() ? *std::move(now) : relay_->last_stats();
  }

  absl::Status Close(Time deadline) override {
    const absl::Time by = SystemClock().FromWall(deadline);
    const absl::Status status =
        client_.Close(by, /*force=*/false, kAnswerPatience);
    // What was on its way here, and never taken, counts as held until this
    // process has said that it is not: it has by now, and no more is granted.
    if (!absl::IsFailedPrecondition(status)) return status;
    return client_.Close(by, /*force=*/false, kAnswerPatience);
  }

  ThreadPool thread_pool() const override { return pool_; }

 private:
  RuntimeClient& client() override { return client_; }

  std::unique_ptr<Relay> relay_;
  const ThreadPool pool_;
  RuntimeClient client_;
};

// What a daemon has been configured with is not a client's to say.
absl::Status CheckOptions(const Options& options) {
  std::string what;
  if (!options.tiers.empty()) {
    for (const TierSpec& each : options.tiers) {
      if (each.kind != TierKind::kHbm) continue;
      return absl::UnimplementedError(
          absl::StrCat("tier '", TierText(each), "' beside a daemon"));
    }
    what = "tiers";
  } else if (!options.paths.empty()) {
    what = "paths";
  } else if (options.memory_paths > 0) {
    what = "memory paths";
  } else if (options.engine != EngineKind::kAuto) {
    what = "an engine";
  } else if (options.pace.read_bytes_per_second > 0 ||
             options.pace.write_bytes_per_second > 0) {
    what = "a pace";
  } else if (options.numa_node.has_value()) {
    what = "a memory node";
  } else if (!options.machine_profile.empty()) {
    what = "a machine profile";
  } else if (options.unsafe_media) {
    what = "unsafe media";
  } else if (options.huge_pages != HugePages::kPreferred) {
    what = "a choice of huge pages";
  } else if (options.io_weights.demand != IoWeights().demand ||
             options.io_weights.prefetch != IoWeights().prefetch ||
             options.io_weights.write_back != IoWeights().write_back) {
    what = "I/O weights";
  }
  if (!what.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " beside a daemon: its configuration says so for all jobs"));
  }
  if (options.io_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a timeout of ", absl::FormatDuration(options.io_timeout),
                     " beside a daemon"));
  }
  if (options.host_budget_bytes > 0 && options.host_growth_bytes >= 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a budget of ", options.host_budget_bytes,
                   " bytes that may grow by ", options.host_growth_bytes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Connect(
    const std::string& socket, const Options& options) {
  TERRACE_RETURN_IF_ERROR(CheckOptions(options));
  TERRACE_ASSIGN_OR_RETURN(const std::string path, SocketPathOf(socket));
  ThreadPool pool = options.thread_pool;
  if (!pool.valid()) {
    TERRACE_ASSIGN_OR_RETURN(pool, ThreadPool::Create(options.threads));
  }
  const absl::Time deadline = SystemClock().Now() + kConnectPatience +
                              LendingPatience(options.host_budget_bytes) +
                              PopulationPatience(options.host_budget_bytes);
  TERRACE_ASSIGN_OR_RETURN(
      Greeted greeted,
      Greet(path,
            {.version = kVersion,
             .job = options.job,
             .memory_bytes = options.host_budget_bytes,
             .growth_bytes = options.host_growth_bytes,
             .eviction = options.eviction,
             .prefetch = options.prefetch,
             .patience_ms = absl::ToInt64Milliseconds(options.io_timeout)},
            deadline));
  const Welcome& welcome = greeted.welcome;
  TERRACE_ASSIGN_OR_RETURN(SharedMemory memory,
                           SharedMemory::Map(greeted.memory, welcome.file_bytes,
                                             welcome.memory_bytes));
  TERRACE_ASSIGN_OR_RETURN(
      std::unique_ptr<Relay> relay,
      Relay::Start(
          {.path = path,
           .greeted = std::move(greeted),
           .memory = std::move(memory),
           .job = options.job,
           .io_timeout = options.io_timeout,
           .patience = options.io_timeout +
                       PopulationPatience(options.host_budget_bytes)}));
  return std::make_unique<ConnectedRuntime>(std::move(relay), std::move(pool));
}

}  // namespace terrace
