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
  PmemPlace& place = *medium->place_;
  const auto media = options.unsafe_media ? PersistDomain::Media::kUnsafe
                                          : PersistDomain::Media::kSafe;
  // Before all the space is taken.
  TERRACE_RETURN_IF_ERROR(PersistDomain::Map(place.fd(), place.file(),
                                             place.least_mapping_bytes(), media)
                              .status());
  TERRACE_ASSIGN_OR_RETURN(const PmemSpace space, place.Reserve());
  TERRACE_ASSIGN_OR_RETURN(
      medium->domain_,
      PersistDomain::Map(place.fd(), place.file(), space.mapped_bytes, media));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<Extent> bad,
                           PersistDomain::BadRanges(place.fd(), place.file()));
  TERRACE_ASSIGN_OR_RETURN(
      const int64_t shutdowns,
      PersistDomain::UnsafeShutdowns(place.fd(), place.file()));
  TERRACE_RETURN_IF_ERROR(place.Claim(medium->domain_.get(), bad, shutdowns));
  medium->begin_bytes_ = space.usable.offset;
  medium->bad_ranges_ = BadRangesWithin(bad, space.usable);
  medium->facts_ = {
      .file = place.file(),
      .file_system = FileSystemOf(place.fd()),
      .granularity = medium->domain_->granularity(),
      .cause = medium->domain_->cause(),
      .size_bytes = space.usable.size_bytes,
      .bad_bytes = TotalBytes(medium->bad_ranges_),
      .unsafe_shutdowns = shutdowns,
      .lost_power = LostPower(place.marked_unsafe_shutdowns(), shutdowns)};
  return medium;
}

absl::Status PmemMedium::CheckGood(Extent range) const {
  TERRACE_CHECK(domain_ != nullptr);
  TERRACE_CHECK(range.offset >= 0 && range.size_bytes <= size_bytes() &&
                range.offset <= size_bytes() - range.size_bytes);
  if (!process_.IsCurrent()) {
    return absl::CancelledError(absl::StrCat(
        name(), ": of process ", process_.id(), "; a forked child has none"));
  }
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
