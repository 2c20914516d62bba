// Whether the quotas of a daemon's configuration can be reached. Pure.
#pragma once

#include "absl/status/status.h"
#include "daemon/config/daemon_config.h"

namespace terrace {

// InvalidArgument, which names the place, both numbers and whose they are: a
// quota of what is no tier of the daemon's, one that is more than the tier has,
// or a job's that is more than its user's.
absl::Status CheckQuotas(const DaemonConfig& config);

}  // namespace terrace
