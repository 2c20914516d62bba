// The configuration of a host's daemon: which tiers it owns, and what each user
// and each job may have of them.
//
//   tiers = ["dram=64GiB", "nvme:/mnt/nvme0/terrace=500GiB"]
//
//   [quota.user]              # each user, of all its jobs together
//   tiers = ["dram=48GiB"]
//   connections = 16
//
//   [quota.job]               # each job
//   tiers = ["dram=32GiB"]
//   arenas = 2
//   requests = 256
//
//   [users.alice]             # a name or a uid, instead of [quota.user]
//   weight = 3
//   [users.alice.job]         # each of its jobs, instead of [quota.job]
//   weight = 1
//   [users.alice.jobs.night]  # one of its jobs, instead of both
//   weight = 3
//
// A quota is a most, not a share that is kept for someone: quotas may add up to
// more than a tier has. A job has no more than its user has, either, so that a
// quota of each job may be more than that of a user who has less than others.
// Tiers are texts as terrace/tier.h has them, with a budget: one of memory, and
// others below it. Tiers of a GPU are not a daemon's.
//
// Beside them, for the daemon itself:
//
//   socket = "/run/terrace/control.sock"  # else as docs/daemon.md has it
//   group = "terrace"      # who may connect, beside the daemon's own user
//   operators = "storage"  # a group that may what root may
//   drain_seconds = 30     # from SIGTERM to the end, at most
//   log = "info"           # or "debug", "warning", "error"
//   metrics = "unix:/run/terrace/metrics.sock"  // off where it is not said
//   pace = "400MB/s"       # of each disk, of all jobs together, either way
//
// Values; functions are thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/config/metrics_address.h"
#include "daemon/config/quota.h"
#include "terrace/tier.h"

namespace terrace {

struct DaemonConfig {
  struct Tier {
    TierSpec spec;
    TextPosition position;
  };
  struct User {
    TextPosition position;
    Quota all;  // its jobs together
    Quota each_job;
    std::map<std::string, Quota> jobs;  // by name
  };

  // What the file says of the daemon itself.
  struct Service {
    std::string socket;  // "": not said
    std::string group;   // "": not said
    TextPosition group_position;
    std::string operators;  // a group; "": not said
    TextPosition operators_position;
    int64_t drain_seconds = 30;
    std::string log = "info";
    std::optional<MetricsAddress> metrics;  // nothing: it tells none
    int64_t pace_bytes_per_second = 0;      // 0: as fast as the disk is
  };

  std::string file;  // as errors name it
  Service service;
  std::vector<Tier> tiers;
  Quota each_user;
  Quota each_job;
  std::map<std::string, User> users;  // by name, or uid in decimal digits

  std::vector<TierSpec> TierSpecs() const;
  // The one of memory.
  const TierSpec& Memory() const;
  // What the user, or the job of that user, may have, as the most specific
  // table has it.
  Quota OfUser(const std::string& user) const;
  Quota OfJob(const std::string& user, const std::string& job) const;
};

// The one of that TierName; null: there is none.
const DaemonConfig::Tier* FindTier(const std::vector<DaemonConfig::Tier>& tiers,
                                   absl::string_view name);

// InvalidArgument, whose message begins with "FILE:LINE:COLUMN: ": the text is
// not TOML, a key is not known, a value is of another kind or out of its range,
// a tier is named twice or is not one of the daemon's, memory is not there or
// not one, or a quota can never be reached: it is more than the tier has, or a
// job's is more than its user's.
absl::StatusOr<DaemonConfig> ParseDaemonConfig(absl::string_view text,
                                               absl::string_view file);

// Reads a file of at most 1 MiB. NotFound, PermissionDenied or Unavailable,
// which name the file; else as ParseDaemonConfig.
absl::StatusOr<DaemonConfig> ReadDaemonConfig(const std::string& file);

}  // namespace terrace
