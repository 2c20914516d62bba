#include "tests/libtorch/offload/sweep/faulty_tiers.h"

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "base/bytes.h"
#include "base/check.h"
#include "libtorch/offload/tier_runtime.h"

namespace terrace {
namespace {

FaultyTiers* open_tiers = nullptr;

}  // namespace

// The library's own stays in its archive, as nothing else of that file is
// asked for.
absl::StatusOr<std::unique_ptr<Runtime>> OpenTiers(const PlaceOptions& asked,
                                                   int64_t budget_bytes,
                                                   int64_t growth_bytes) {
  TERRACE_CHECK(open_tiers != nullptr && !asked.paths.empty());
  return open_tiers->Open(budget_bytes, growth_bytes);
}

FaultyTiers::FaultyTiers(const FaultyTiersOptions& options)
    : options_(options) {
  TERRACE_CHECK(open_tiers == nullptr);
  open_tiers = this;
}

FaultyTiers::~FaultyTiers() { open_tiers = nullptr; }

std::unique_ptr<Runtime> FaultyTiers::Open(int64_t budget_bytes,
                                           int64_t growth_bytes) {
  TestRuntimeOptions options;
  options.budget_bytes = RoundDown(budget_bytes, kBlockBytes);
  options.growth_bytes = growth_bytes;
  options.path_bytes = options_.disk_bytes;
  options.io_timeout = options_.io_timeout;
  world_ = std::make_unique<TestRuntime>(TestWorld::kMemory, options);
  return std::unique_ptr<Runtime>(world_->ReleaseRuntime());
}

bool FaultyTiers::Mend(Runtime& runtime) {
  faults().Clear();
  disk().Clear();
  const absl::Time end = absl::Now() + OnThisMachine(absl::Seconds(30));
  while (true) {
    runtime.Prefetch({});  // wakes the engine, which sees it then
    if (runtime.GetStats().host.quarantined_bytes == 0) return true;
    if (absl::Now() >= end) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
}

}  // namespace terrace
