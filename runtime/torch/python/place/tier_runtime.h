// The Runtime over the tiers that the package asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/torch/python/place/options.h"
#include "terrace/runtime.h"
#include "terrace/tier.h"

namespace terrace {

// A Runtime of that much memory, which may grow by `growth_bytes`, over the
// tiers below that were asked for. InvalidArgument: one that is none; else what
// Runtime::Create says.
absl::StatusOr<std::unique_ptr<Runtime>> OpenTiers(const BindingOptions& asked,
                                                   int64_t budget_bytes,
                                                   int64_t growth_bytes = 0);

// Those between memory and disks. InvalidArgument: a text that is none.
absl::StatusOr<std::vector<TierSpec>> MappedTiers(const BindingOptions& asked);
// InvalidArgument: a name of no engine.
absl::StatusOr<EngineKind> ParseEngine(const std::string& name);

}  // namespace terrace
