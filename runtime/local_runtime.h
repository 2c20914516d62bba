// A Runtime in this process, from parts: what Runtime::Create composes from
// Options, and a test from fakes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/clock.h"
#include "runtime/base/executor.h"
#include "runtime/mover/mover.h"
#include "terrace/runtime.h"
#include "tiers/memory/host_arena.h"

namespace terrace {

struct LocalRuntimeParts {
  MoverParts mover;  // arena, clock and executor are filled from below
  std::unique_ptr<HostArena> arena;
  std::unique_ptr<Executor> executor;
  // Per path, for what its file system may hang in; empty: a thread each.
  std::vector<std::unique_ptr<Executor>> background;
  Clock* clock = nullptr;       // outlives the runtime
  std::string machine_profile;  // as Stats tells it
  // False: nobody turns the crank but the test (or its clock), by mover().
  bool start_thread = true;
};

class LocalRuntime : public Runtime {
 public:
  static std::unique_ptr<LocalRuntime> Start(LocalRuntimeParts parts);
  virtual Mover& mover() = 0;
};

}  // namespace terrace
