// What offloaded models live in while this is there: the production Runtime
// with as much memory as the library asks for, over one disk in memory that
// fails as the test says. A program that has this in it opens all its tiers
// here, in the library's place.
//
//   FaultyTiers tiers({});
//   auto offload = Offload::Create(*model, {...});  // any path below
//   tiers.faults().FailCall(3, {.kind = FaultKind::kError},
//   CallFilter::kReads);
//   ...
//   tiers.Mend(offload->runtime());
//
// One at a time. What was opened ends before it.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "terrace/runtime.h"
#include "tests/support/fault_disk_file.h"
#include "tests/support/fault_engine.h"
#include "tests/support/runtime_fixture.h"

namespace terrace {

struct FaultyTiersOptions {
  absl::Duration io_timeout = absl::Seconds(60);
  int64_t disk_bytes = 4 << 20;
};

class FaultyTiers {
 public:
  explicit FaultyTiers(const FaultyTiersOptions& options);
  // Ends all faults first.
  ~FaultyTiers();
  FaultyTiers(const FaultyTiers&) = delete;
  FaultyTiers& operator=(const FaultyTiers&) = delete;

  // Of what was opened last.
  FaultPlan& faults() { return world_->faults(); }
  DiskFaults& disk() { return world_->disk_faults(0); }

  // Ends all faults; the Runtime's buffers that transfers past their deadlines
  // had are its own again. False: some are not.
  bool Mend(Runtime& runtime);

  // For the library.
  std::unique_ptr<Runtime> Open(int64_t budget_bytes, int64_t growth_bytes);

 private:
  const FaultyTiersOptions options_;
  std::unique_ptr<TestRuntime> world_;
};

}  // namespace terrace
