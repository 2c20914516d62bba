// How a process that goes on with its runtime says so, as control.fbs has it:
// its token, and what it has.
#pragma once

#include "absl/status/statusor.h"
#include "daemon/wire/job_messages.h"
#include "daemon/wire/tables/flat_tables.h"

namespace terrace {

// Nothing is written of one that is none.
flatbuffers::Offset<flatbuffers::Vector<uint8_t>> WriteToken(
    FlatBuilder& builder, const JobToken& token);
// InvalidArgument: it has another length.
absl::StatusOr<JobToken> ReadToken(const flatbuffers::Vector<uint8_t>* bytes);

flatbuffers::Offset<flat::Claim> WriteClaim(FlatBuilder& builder,
                                            const ClaimRequest& claim);
absl::StatusOr<JobRequest> ReadClaim(const flat::Claim& table,
                                     FlatReader& reader);

}  // namespace terrace
