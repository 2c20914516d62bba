// How a program's tests reach the runtimes that they make: as they are, or from
// the other side of something that the program puts between, once, before its
// first test.
//
//   absl::StatusOr<ReachedRuntime> runtime = Reach(options);
//   (*runtime)->Register(...);
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/local_runtime.h"
#include "terrace/options.h"
#include "terrace/runtime.h"
#include "tiers/memory/host_arena.h"
#include "tiers/memory/spill/spill_source.h"

namespace terrace {

struct ReachedRuntime {
  std::shared_ptr<void> behind;  // goes after the runtime
  std::unique_ptr<Runtime> runtime;

  Runtime& operator*() const { return *runtime; }
  Runtime* operator->() const { return runtime.get(); }
};
using RuntimeDoor = ReachedRuntime (*)(std::unique_ptr<LocalRuntime> runtime);
inline RuntimeDoor runtime_door = nullptr;  // as they are
// What has the memory beyond the budget of the runtime that goes through the
// door next.
inline std::shared_ptr<SpillSource> (*spill_door)(HostArena& arena) = nullptr;

// Runtime::Create, and what it made through the door.
absl::StatusOr<ReachedRuntime> Reach(const Options& options);

// More than any test has beyond its budget, where memory is of a file.
inline constexpr int64_t kSpillBytes = int64_t{1} << 30;

}  // namespace terrace
