// What `doctor` says of a daemon's configuration.
#pragma once

#include <string>

#include "daemon/config/daemon_config.h"

namespace terrace::cli {

// Lines of about `width` columns, a row for each quota: each user and each job,
// then those that are named, with all that holds for them wherever the file
// says it.
std::string FormatQuotas(const DaemonConfig& config, int width);

// A JSON object with the same as its member "daemon". What is not limited is
// null.
std::string WithQuotas(const std::string& json, const DaemonConfig& config);

}  // namespace terrace::cli
