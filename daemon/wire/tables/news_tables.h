// What a job's process is answered as tables of control.fbs, and back.
#pragma once

#include "absl/status/statusor.h"
#include "daemon/wire/job_messages.h"
#include "daemon/wire/tables/flat_tables.h"

namespace terrace {

flatbuffers::Offset<flat::JobNews> WriteNews(FlatBuilder& builder,
                                             const JobNews& news);

// InvalidArgument, which names what is absent or out of its range.
absl::StatusOr<JobNews> ReadNews(const flat::JobNews& table,
                                 FlatReader& reader);

}  // namespace terrace
