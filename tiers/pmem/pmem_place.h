// Where a tier of persistent memory lies: a file of this job's own in a
// directory, a file that was given to Terrace, or a DAX device. Marked, locked
// and refused by the rules that disk paths have (job_directory.h,
// given_file.h): a lock dies with its job, and what killed jobs left goes, here
// before a new job takes its space.
//
// One thread at a time. A forked child removes nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tiers/extent.h"
#include "tiers/growth/growth.h"
#include "tiers/medium.h"
#include "tiers/pmem/persist_domain.h"
#include "tiers/pmem/pmem_space.h"

namespace terrace {

class PmemPlace {
 public:
  // NotFound: no such place; InvalidArgument: of no kind that will do, or it
  // holds data of others, or the budget is below a block or beyond all that
  // there is; Unavailable: another job has it; PermissionDenied;
  // ResourceExhausted: no room for the first block. `budget_bytes`, of usable
  // space, is rounded down to blocks; 0: all there is.
  static absl::StatusOr<std::unique_ptr<PmemPlace>> Open(
      const std::string& place, int64_t budget_bytes);
  // A directory's file that grows, and that another process has left: `kept` is
  // what that one held it by. What it has beyond `used_bytes` is given back.
  // Errors as ReopenDiskFile has them.
  static absl::StatusOr<std::unique_ptr<PmemPlace>> Reopen(
      const std::string& place, int64_t budget_bytes, KeptMedium kept,
      int64_t used_bytes, absl::Time deadline);
  virtual ~PmemPlace() = default;

  virtual const std::string& file() const = 0;  // as errors name it
  virtual int fd() const = 0;                   // this object's
  // Whether it can only be mapped, neither read nor written.
  virtual bool is_dax_device() const { return false; }
  // What is there, and can be mapped, before Reserve: to see what it is.
  virtual int64_t least_mapping_bytes() const = 0;

  // Takes the whole of its space, once. ResourceExhausted: names the file, the
  // bytes asked for and those that are free; nothing is taken then.
  virtual absl::StatusOr<PmemSpace> Reserve() = 0;
  // In place of Reserve: addresses of the budget's bytes, of which Grow takes
  // space. InvalidArgument: no directory's file, or a file cannot be so long.
  virtual absl::StatusOr<PmemSpace> BeginEmpty();
  // As Medium::Grow.
  virtual absl::StatusOr<int64_t> Grow(const Growth& growth);
  // Of what Reserve gave, mapped: refuses what holds data of others, and marks
  // it for good, with the medium's unsafe shutdowns so far (-1: unknown). Once.
  // InvalidArgument, with the command that clears it; Unavailable: bad blocks
  // where the mark is.
  virtual absl::Status Claim(PersistDomain*, const std::vector<Extent>&,
                             int64_t /*unsafe_shutdowns*/) {
    return absl::OkStatus();
  }
  // Of the mark that a job before left, after Claim; -1: unknown.
  virtual int64_t marked_unsafe_shutdowns() const { return -1; }

  // As Medium::Keep.
  virtual std::optional<KeptMedium> Keep() const { return std::nullopt; }

  // Removes a file of its own, and gives a given file's space back. Nothing is
  // mapped any more.
  virtual absl::Status Remove() = 0;
};

}  // namespace terrace
