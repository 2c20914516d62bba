// What the paths of a daemon's tiers are on this host.
//
// Thread-safe.
#pragma once

#include "absl/status/status.h"
#include "daemon/config/daemon_config.h"

namespace terrace {

// Jobs share directories. InvalidArgument, which names the place: the path of a
// disk or of persistent memory is a file or a device, which is one job's. What
// is not there is whoever's who opens it.
absl::Status CheckPaths(const DaemonConfig& config);

}  // namespace terrace
