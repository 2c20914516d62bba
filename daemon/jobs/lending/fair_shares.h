// How much each of those who claim a tier's bytes may keep where they claim
// more than there is: users share by their weights, what a user has is shared
// by its jobs by theirs, and what a job has by its processes alike. What one
// does not claim, or may not have, is the others'.
//
// Weighted max-min fairness (Bertsekas and Gallager 1992, "Data Networks",
// section 6.5.2), at each of the three levels.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "daemon/jobs/job_name.h"

namespace terrace {

struct ShareLimit {
  int64_t most_bytes = INT64_MAX;
  int64_t weight = 1;
};

struct ShareClaim {
  JobName job;
  int64_t bytes = 0;
  ShareLimit of_user;  // the same in each of that user's
  ShareLimit of_job;   // and of that job's
};

// In the order of the claims: of so many bytes, whole blocks of 4 KiB, but for
// a claim that is had as it is.
std::vector<int64_t> FairShares(int64_t bytes,
                                absl::Span<const ShareClaim> claims);

}  // namespace terrace
