// Where jobs' far and persistent memory comes from: each process of a job has a
// medium of its own of each such tier, with nothing in it at first.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "terrace/tier.h"
#include "tiers/medium.h"

namespace terrace {

class MediumSource {
 public:
  virtual ~MediumSource() = default;
  // It grows to the tier's budget. `outlives`: it may be kept beyond this
  // process. Errors are Runtime::Create's, without the tier's name.
  virtual absl::StatusOr<std::unique_ptr<Medium>> Open(const TierSpec& tier,
                                                       bool outlives) const = 0;
  // What a daemon before this one had, of that budget, with so much in use.
  // What that one had under way there has ended, or DeadlineExceeded; NotFound:
  // it is gone; InvalidArgument: it is another's.
  virtual absl::StatusOr<std::unique_ptr<Medium>> Reopen(
      const TierSpec& tier, KeptMedium kept, int64_t used_bytes,
      absl::Time deadline) const = 0;
};

// This host's; `memory`: the one that is near.
std::unique_ptr<MediumSource> MakeHostMedia(const TierSpec& memory);

}  // namespace terrace
