// The production engines, each behind its own door; MakeEngine chooses.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "aio/engine.h"

namespace terrace {

// Unavailable, naming call and errno, where the kernel gives no ring or refuses
// a call that it needs (aio/uring_trial.h). Set-up flags in `unknown_flags`
// (IORING_SETUP_...) are taken as unknown to the kernel, as an older one's
// answer would be, so that each step down can be forced. `files`: how many will
// be added.
absl::StatusOr<std::unique_ptr<IoEngine>> MakeUringEngine(
    uint32_t unknown_flags = 0, int files = 0);

// Whether the file's system is a server in user space: it answers if it does.
bool IsOnFuse(int fd);

// `reason` is what info() says beside the number of threads. Null: the system
// gives no thread at all.
std::unique_ptr<IoEngine> MakeThreadEngine(const std::string& reason);

}  // namespace terrace
