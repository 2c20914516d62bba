// What a method of the binding answers, as values that TorchScript can hand to
// Python; the package makes exceptions of them.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

// absl's code, 0 for OK; the message; and what base/io_fault.h knows:
// the errno or 0, the path or nothing, the offset or -1.
using Outcome = std::tuple<int64_t, std::string, int64_t, std::string, int64_t>;

Outcome ToOutcome(const absl::Status& status);
// OK, with a message that is an answer.
Outcome Answer(std::string message);
// Either of them.
Outcome ToOutcome(absl::StatusOr<std::string> answer);

}  // namespace terrace
