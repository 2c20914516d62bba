// A process's runtime in a daemon that a test started, and its tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/daemon/server/running_daemon.h"
#include "tests/support/runtime_fixture.h"

namespace terrace {

// A process that a test forks has threads of its own, which the thread
// sanitiser does not let it have.
inline constexpr bool kChildrenHaveThreads =
#if defined(__SANITIZE_THREAD__)
    false;
#else
    true;
#endif

inline absl::StatusOr<std::unique_ptr<Runtime>> ConnectAs(
    const RunningDaemon& daemon, int64_t memory_bytes,
    const std::string& job = "", int64_t growth_bytes = 0,
    absl::Duration patience = Options().io_timeout) {
  Options options;
  options.io_timeout = patience;
  options.host_budget_bytes = memory_bytes;
  options.host_growth_bytes = growth_bytes;
  options.job = job;
  options.threads = 1;
  return Runtime::Connect("unix:" + daemon.socket(), options);
}

inline absl::StatusOr<TensorId> RegisterOf(Runtime& runtime,
                                           const std::string& name,
                                           int64_t size_bytes) {
  TensorSpec spec;
  spec.name = name;
  spec.size_bytes = size_bytes;
  return runtime.Register(spec);
}

inline Time Later() { return absl::Now() + absl::Seconds(30); }

inline bool FillOf(Runtime& runtime, TensorId tensor, uint8_t seed) {
  auto pin = runtime.Acquire(tensor, Access::kOverwrite, Later());
  EXPECT_TRUE(pin.ok()) << pin.status();
  if (pin.ok()) WritePattern(pin->data(), seed);
  return pin.ok();
}

inline bool Holds(Runtime& runtime, TensorId tensor, uint8_t seed) {
  const auto pin = runtime.Acquire(tensor, Access::kRead, Later());
  EXPECT_TRUE(pin.ok()) << pin.status();
  return pin.ok() && HasPattern(pin->data(), seed);
}

// What all jobs have of the daemon's memory, and of its path.
inline int64_t UsedMemory(const RunningDaemon& daemon) {
  const auto status = daemon.Status();
  return status.ok() ? status->tiers.at(0).used_bytes : -1;
}
inline int64_t UsedPath(const RunningDaemon& daemon) {
  const auto status = daemon.Status();
  return status.ok() ? status->tiers.at(1).used_bytes : -1;
}

}  // namespace terrace
