// A runtime's Stats as tables of control.fbs, and back.
#pragma once

#include "absl/status/statusor.h"
#include "daemon/wire/tables/flat_tables.h"
#include "terrace/stats.h"

namespace terrace {

flatbuffers::Offset<flat::Stats> WriteStats(FlatBuilder& builder,
                                            const Stats& stats);

// InvalidArgument, which names what is absent or out of its range.
absl::StatusOr<Stats> ReadStats(const flat::Stats& table, FlatReader& reader);

}  // namespace terrace
