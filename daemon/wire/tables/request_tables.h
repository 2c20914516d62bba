// The requests of a job's process as tables of control.fbs, and back.
#pragma once

#include "absl/status/statusor.h"
#include "daemon/wire/job_messages.h"
#include "daemon/wire/tables/flat_tables.h"

namespace terrace {

flatbuffers::Offset<flat::JobRequests> WriteRequests(
    FlatBuilder& builder, const JobRequests& requests);

// InvalidArgument, which names what is absent or out of its range. Values that
// the runtime checks are as they came.
absl::StatusOr<JobRequests> ReadRequests(const flat::JobRequests& table,
                                         FlatReader& reader);

}  // namespace terrace
