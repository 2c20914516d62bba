// A DAX device (/dev/daxX.Y) that is given to Terrace, by the rules that a
// block device has (given_file.h): the first and the last MiB stay zero but for
// a mark of 4 KiB, and one that holds anything else there is refused. The job
// holds an exclusive flock on it, which dies with the job.
//
// A length that the device's alignment does not divide is rounded down: the
// kernel maps no part of a unit. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/process.h"
#include "tiers/extent.h"
#include "tiers/pmem/persist_domain.h"
#include "tiers/pmem/pmem_space.h"

namespace terrace {

// What tensors may have of such a device. ResourceExhausted: it is too small;
// InvalidArgument: the budget is beyond what it has. 0: no budget.
absl::StatusOr<PmemSpace> DaxSpace(const std::string& path,
                                   PersistDomain::Shape shape,
                                   int64_t budget_bytes);

// Whether its margins are free to be marked, `device` being all that is mapped
// of it. No byte of a bad block is read. InvalidArgument: data of others, at
// the offset that it names; Unavailable: a bad block in a margin.
absl::Status CheckDaxMargins(const std::string& path,
                             absl::Span<const std::byte> device,
                             const std::vector<Extent>& bad);

// The mark over the beginning of what `domain` has.
absl::Status WriteMark(PersistDomain* domain, int64_t unsafe_shutdowns);

class DaxDevice {
 public:
  // InvalidArgument: a character device of another kind; Unavailable: another
  // job has it; PermissionDenied; others as DaxSpace.
  static absl::StatusOr<std::unique_ptr<DaxDevice>> Open(
      const std::string& path, int64_t budget_bytes);
  ~DaxDevice();
  DaxDevice(const DaxDevice&) = delete;
  DaxDevice& operator=(const DaxDevice&) = delete;

  int fd() const { return opened_.get(); }
  const std::string& path() const { return path_; }
  const PmemSpace& space() const { return space_; }
  int64_t alignment() const { return alignment_; }

  // Checks its margins, and marks it, with the unsafe shutdowns so far; -1:
  // unknown.
  absl::Status Claim(PersistDomain* domain, const std::vector<Extent>& bad,
                     int64_t unsafe_shutdowns);
  // Of the mark before, if there was one, once it is claimed; -1: unknown.
  int64_t marked_unsafe_shutdowns() const { return unsafe_shutdowns_; }

 private:
  explicit DaxDevice(const std::string& path);
  absl::Status OpenFile();
  absl::Status Lock();

  const std::string path_;  // as the user named it
  OwnDescriptor opened_;
  int64_t alignment_ = 0;
  int64_t unsafe_shutdowns_ = -1;
  PmemSpace space_;
};

}  // namespace terrace
