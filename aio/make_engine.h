// The production engines, each behind its own door; MakeEngine chooses.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "aio/engine.h"

namespace terrace {

// Unavailable, naming the errno, where the kernel gives no ring.
absl::StatusOr<std::unique_ptr<IoEngine>> MakeUringEngine();

// `reason` is what info() says beside the number of threads.
std::unique_ptr<IoEngine> MakeThreadEngine(const std::string& reason);

}  // namespace terrace
