#include "libtorch/python/outcome.h"

#include <utility>

#include "base/io_fault.h"

namespace terrace {

Outcome ToOutcome(const absl::Status& status) {
  IoFault fault = IoFaultOf(status);
  return {static_cast<int64_t>(status.code()), std::string(status.message()),
          fault.error, std::move(fault.path), fault.offset};
}

Outcome Answer(std::string message) {
  return {0, std::move(message), 0, "", IoFault::kNoOffset};
}

Outcome ToOutcome(absl::StatusOr<std::string> answer) {
  return answer.ok() ? Answer(*std::move(answer)) : ToOutcome(answer.status());
}

}  // namespace terrace
