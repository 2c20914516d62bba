// Which options of Adam can be meant. Pure functions.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "terrace/adam.h"

namespace terrace {

// InvalidArgument, naming the number and its value after `what`.
absl::Status CheckAdamOptions(const AdamOptions& options,
                              absl::string_view what);

}  // namespace terrace
