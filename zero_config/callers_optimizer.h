// An optimizer that the text names and the caller makes: SGD of torch.optim.
// Pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "terrace/zero_config.h"

namespace terrace {

// The caller's optimizer of that name, in its own spelling; "": it has none.
std::string CallersName(const ZeroConfigCaller& caller, absl::string_view name);

}  // namespace terrace
