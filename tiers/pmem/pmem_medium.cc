#include "tiers/pmem/pmem_medium.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "tiers/extent_header.h"
#include "tiers/pmem/bad_ranges.h"
#include "tiers/pmem/media_facts.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

// Below what one read can move (2 GiB less a page).
constexpr size_t kMostOfOneRead = size_t{1} << 30;

absl::Status Lost(const std::string& file, int64_t offset,
                  const std::string& what) {
  return WithIoFault(absl::DataLossError(absl::StrCat(
                         file, ": read failed: offset ", offset, ": ", what)),
                     {.error = EIO, .path = file, .offset = offset});
}

}  // namespace

PmemMedium::~PmemMedium() = default;

absl::StatusOr<std::unique_ptr<PmemMedium>> PmemMedium::Open(
    const PmemOptions& options) {
  TERRACE_RETURN_IF_ERROR(PersistDomain::CheckAvailable());
  std::unique_ptr<PmemMedium> medium(new PmemMedium);
  TERRACE_ASSIGN_OR_RETURN(
      medium->place_, PmemPlace::Open(options.place, options.budget_bytes));
  TERRACE_RETURN_IF_ERROR(medium->Map(options, /*used_bytes=*/0));
  if (options.grows) medium->seal_id_ = NewSealId();
  return medium;
}

absl::StatusOr<std::unique_ptr<PmemMedium>> PmemMedium::Reopen(
    const PmemOptions& options, KeptMedium kept, int64_t used_bytes,
    absl::Time deadline) {
  TERRACE_RETURN_IF_ERROR(PersistDomain::CheckAvailable());
  std::unique_ptr<PmemMedium> medium(new PmemMedium);
  medium->seal_id_ = kept.seal_id;
  TERRACE_ASSIGN_OR_RETURN(
      medium->place_, PmemPlace::Reopen(options.place, options.budget_bytes,
                                        std::move(kept), used_bytes, deadline));
  TERRACE_RETURN_IF_ERROR(medium->Map(options, used_bytes));
  return medium;
}

absl::Status PmemMedium::Map(const PmemOptions& options, int64_t used_bytes) {
  PmemPlace& place = *place_;
  const auto media = options.unsafe_media ? PersistDomain::Media::kUnsafe
                                          : PersistDomain::Media::kSafe;
  // Before all the space is taken.
  TERRACE_RETURN_IF_ERROR(PersistDomain::Map(place.fd(), place.file(),
                                             place.least_mapping_bytes(), media)
                              .status());
  TERRACE_ASSIGN_OR_RETURN(const PmemSpace space, options.grows
                                                      ? place.BeginEmpty()
                                                      : place.Reserve());
  TERRACE_ASSIGN_OR_RETURN(
      domain_,
      PersistDomain::Map(place.fd(), place.file(), space.mapped_bytes, media));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<Extent> bad,
                           PersistDomain::BadRanges(place.fd(), place.file()));
  TERRACE_ASSIGN_OR_RETURN(
      const int64_t shutdowns,
      PersistDomain::UnsafeShutdowns(place.fd(), place.file()));
  TERRACE_RETURN_IF_ERROR(place.Claim(domain_.get(), bad, shutdowns));
  begin_bytes_ = space.usable.offset;
  size_bytes_ = options.grows ? used_bytes : space.usable.size_bytes;
  const std::vector<Extent> bad_ranges = BadRangesWithin(bad, space.usable);
  SetBadRanges(bad_ranges);
  facts_ = {
      .file = place.file(),
      .file_system = FileSystemOf(place.fd()),
      .granularity = domain_->granularity(),
      .cause = domain_->cause(),
      .size_bytes = space.usable.size_bytes,
      .bad_bytes = TotalBytes(bad_ranges),
      .unsafe_shutdowns = shutdowns,
      .lost_power = LostPower(place.marked_unsafe_shutdowns(), shutdowns)};
  return absl::OkStatus();
}

std::optional<KeptMedium> PmemMedium::Keep() const {
  std::optional<KeptMedium> kept = place_->Keep();
  if (kept.has_value()) kept->seal_id = seal_id_;
  return seal_id_ != 0 ? std::move(kept) : std::nullopt;
}

void PmemMedium::SetBadRanges(std::vector<Extent> ranges) {
  MutexLock lock(mutex_);
  bad_ranges_ = std::move(ranges);
}

std::vector<Extent> PmemMedium::bad_ranges() const {
  MutexLock lock(mutex_);
  return bad_ranges_;
}

absl::StatusOr<int64_t> PmemMedium::Grow(const Growth& growth) {
  TERRACE_ASSIGN_OR_RETURN(const int64_t gained, place_->Grow(growth));
  const absl::StatusOr<std::vector<Extent>> bad =
      PersistDomain::BadRanges(place_->fd(), place_->file());
  if (!bad.ok()) {
    absl::Status status = bad.status();
    if (ftruncate(place_->fd(), growth.offset) != 0) {
      status.Update(
          ErrnoError(name(), "cannot give back what it grew by", errno));
    }
    return status;
  }
  SetBadRanges(BadRangesWithin(*bad, {0, growth.offset + gained}));
  size_bytes_ = growth.offset + gained;
  return gained;
}

absl::Status PmemMedium::CheckGood(Extent range) const {
  TERRACE_CHECK(domain_ != nullptr);
  TERRACE_CHECK(range.offset >= 0 && range.size_bytes <= size_bytes() &&
                range.offset <= size_bytes() - range.size_bytes);
  if (!process_.IsCurrent()) {
    return absl::CancelledError(absl::StrCat(
        name(), ": of process ", process_.id(), "; a forked child has none"));
  }
  MutexLock lock(mutex_);
  const Extent* const bad = FirstTouched(bad_ranges_, range);
  if (bad == nullptr) return absl::OkStatus();
  const int64_t at = begin_bytes_ + std::max(bad->offset, range.offset);
  return WithIoFault(
      absl::DataLossError(absl::StrCat(name(), ": a bad block at offset ", at)),
      {.error = EIO, .path = name(), .offset = at});
}

absl::Status PmemMedium::Read(int64_t offset, absl::Span<std::byte> to) {
  TERRACE_RETURN_IF_ERROR(CheckGood({offset, static_cast<int64_t>(to.size())}));
  if (!place_->is_dax_device()) return ReadFile(begin_bytes_ + offset, to);
  if (to.empty()) return absl::OkStatus();
  std::memcpy(to.data(), domain_->bytes().data() + begin_bytes_ + offset,
              to.size());
  return absl::OkStatus();
}

absl::Status PmemMedium::ReadFile(int64_t offset, absl::Span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t n = pread(place_->fd(), to.data(),
                            std::min(to.size(), kMostOfOneRead), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EIO) return Lost(name(), offset, ErrnoName(EIO));
    if (n < 0) {
      return WithIoFault(
          ErrnoError(name(), absl::StrCat("read failed: offset ", offset),
                     errno),
          {.offset = offset});
    }
    if (n == 0) return Lost(name(), offset, "the file ends there");
    to.remove_prefix(static_cast<size_t>(n));
    offset += n;
  }
  return absl::OkStatus();
}

absl::Status PmemMedium::Write(int64_t offset,
                               absl::Span<const std::byte> from) {
  TERRACE_RETURN_IF_ERROR(
      CheckGood({offset, static_cast<int64_t>(from.size())}));
  return domain_->Copy(begin_bytes_ + offset, from);
}

absl::Status PmemMedium::Remove() {
  domain_ = nullptr;
  return place_->Remove();
}

}  // namespace terrace
