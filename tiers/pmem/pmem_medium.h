// The bytes of a tier of persistent memory: a file on a file system with DAX,
// or a DAX device, mapped. Writes persist before they return; nothing of it
// outlives the job all the same, as of a disk path.
//
// A file is read by its descriptor, so that a cell that went bad is an error of
// one piece and not a signal; on a file system without DAX that shows the
// mapping's bytes as well. A DAX device can only be mapped: of its bad blocks,
// those known when its bytes came are never touched, and one that goes bad
// later is SIGBUS.
//
// Offsets are the tier's, from 0; those in errors are the file's. Thread-safe,
// but for Grow and Remove. A forked child has none of it, and removes nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "base/process.h"
#include "tiers/medium.h"
#include "tiers/pmem/persist_domain.h"
#include "tiers/pmem/pmem_facts.h"
#include "tiers/pmem/pmem_place.h"

namespace terrace {

struct PmemOptions {
  // An existing directory, in which a file is made; an empty file, or one that
  // a job had; a DAX device.
  std::string place;
  // In whole blocks (kBlockBytes), all taken at once. 0: all there is.
  int64_t budget_bytes = 0;
  // A directory's file begins with nothing instead, and grows to its budget,
  // which is not 0.
  bool grows = false;
  // For tests: takes any file system. What is written is as durable as msync
  // makes it there, and a page at a time.
  bool unsafe_media = false;
};

class PmemMedium final : public Medium {
 public:
  // Unimplemented: a build without libpmem2. Unavailable: no persistent memory
  // (see PersistDomain::Map), or another job has it, or PMEM2_FORCE_* is set.
  // InvalidArgument, NotFound, PermissionDenied: of the place, see
  // PmemPlace::Open. ResourceExhausted: no room for the budget.
  static absl::StatusOr<std::unique_ptr<PmemMedium>> Open(
      const PmemOptions& options);
  // One that grows, and that another process has left with `used_bytes` in it.
  // Errors also as PmemPlace::Reopen has them.
  static absl::StatusOr<std::unique_ptr<PmemMedium>> Reopen(
      const PmemOptions& options, KeptMedium kept, int64_t used_bytes,
      absl::Time deadline);
  ~PmemMedium() override;

  const std::string& name() const override { return facts_.file; }
  int64_t size_bytes() const override { return size_bytes_; }
  std::vector<Extent> bad_ranges() const override;
  int64_t most_bytes() const override { return facts_.size_bytes; }
  // Errors also as Open has them of bad blocks.
  absl::StatusOr<int64_t> Grow(const Growth& growth) override;
  uint64_t seal_id() const override { return seal_id_; }
  std::optional<KeptMedium> Keep() const override;
  const PmemFacts& facts() const { return facts_; }

  // DataLoss: a bad block, or the file was cut; names the file and its offset.
  absl::Status Read(int64_t offset, absl::Span<std::byte> to) override;
  // DataLoss: a bad block that was known when its bytes came. Others: msync's,
  // of unsafe media; names the file and its offset.
  absl::Status Write(int64_t offset, absl::Span<const std::byte> from) override;
  absl::Status Remove() override;

 private:
  PmemMedium() = default;
  // All but the place, which has so much in use of one that grows.
  absl::Status Map(const PmemOptions& options, int64_t used_bytes);
  void SetBadRanges(std::vector<Extent> ranges);
  absl::Status CheckGood(Extent range) const;
  absl::Status ReadFile(int64_t offset, absl::Span<std::byte> to);

  // Unmapped before the place goes.
  const Process process_;
  std::unique_ptr<PmemPlace> place_;
  std::unique_ptr<PersistDomain> domain_;
  int64_t begin_bytes_ = 0;  // of the tier in the file
  uint64_t seal_id_ = 0;
  std::atomic<int64_t> size_bytes_ = 0;
  mutable Mutex mutex_;
  std::vector<Extent> bad_ranges_ ABSL_GUARDED_BY(mutex_);
  PmemFacts facts_;
};

}  // namespace terrace
