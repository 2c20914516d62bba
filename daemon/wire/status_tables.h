// A daemon's status as a table of control.fbs, for envelope.cc alone.
#pragma once

#include "absl/status/statusor.h"
#include "daemon/wire/daemon_status.h"
#include "daemon/wire/flat_tables.h"

namespace terrace {

flatbuffers::Offset<flat::Status> WriteStatus(FlatBuilder& builder,
                                              const DaemonStatus& status);
absl::StatusOr<DaemonStatus> ReadStatus(const flat::Status& table,
                                        FlatReader& reader);

}  // namespace terrace
