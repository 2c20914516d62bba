#include "tiers/pmem/dax_device.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "base/system/file_lock.h"
#include "base/text/shell_word.h"
#include "tiers/disk/given_file.h"
#include "tiers/disk/given_mark.h"
#include "tiers/pmem/bad_ranges.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

constexpr int64_t kMargin = GivenFile::kDeviceMarginBytes;
constexpr absl::Duration kLockPatience = absl::Milliseconds(500);

std::string NameOf(const std::string& path) {
  return absl::StrCat("path '", path, "'");
}

absl::Status CheckMargin(const std::string& path,
                         absl::Span<const std::byte> device, int64_t offset,
                         int64_t skipped_bytes) {
  const char* const bytes = reinterpret_cast<const char*>(device.data());
  const int64_t begin = offset + skipped_bytes;
  const int64_t found = FirstNonZero(
      {bytes + begin, static_cast<size_t>(kMargin - skipped_bytes)});
  if (found < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      NameOf(path), ": the device holds data of others, at offset ",
      begin + found,
      ". If they are not needed (daxio is in pmdk-tools): daxio "
      "--zero --output ",
      ShellWord(path)));
}

}  // namespace

absl::StatusOr<PmemSpace> DaxSpace(const std::string& path,
                                   PersistDomain::Shape shape,
                                   int64_t budget_bytes) {
  const int64_t unit = shape.alignment > 0 ? shape.alignment : kBlockBytes;
  const int64_t mapped = RoundDown(shape.size_bytes, unit);
  const int64_t usable = mapped - 2 * kMargin;
  if (usable < kBlockBytes) {
    return WithIoFault(
        absl::ResourceExhaustedError(absl::StrCat(
            NameOf(path), ": a device of ", shape.size_bytes, " bytes, ",
            mapped, " of them in whole units of ", unit, "; the least is ",
            RoundUp(2 * kMargin + kBlockBytes, unit))),
        {.error = ENOSPC, .path = path});
  }
  if (budget_bytes > usable) {
    return absl::InvalidArgumentError(
        absl::StrCat(NameOf(path), ": a budget of ", budget_bytes,
                     " bytes, and there are ", usable));
  }
  const int64_t taken = budget_bytes == 0 ? usable : budget_bytes;
  return PmemSpace{{kMargin, RoundDown(taken, kBlockBytes)}, mapped};
}

absl::Status CheckDaxMargins(const std::string& path,
                             absl::Span<const std::byte> device,
                             const std::vector<Extent>& bad) {
  const auto size = static_cast<int64_t>(device.size());
  TERRACE_CHECK(size >= 2 * kMargin);
  for (const Extent margin : {Extent{0, kMargin}, {size - kMargin, kMargin}}) {
    const Extent* const touched = FirstTouched(bad, margin);
    if (touched == nullptr) continue;
    return WithIoFault(
        absl::UnavailableError(absl::StrCat(
            NameOf(path), ": a bad block at offset ", touched->offset,
            ", where the device is marked; see `ndctl clear-errors`")),
        {.error = EIO, .path = path, .offset = touched->offset});
  }
  const bool marked = IsGivenMark(reinterpret_cast<const char*>(device.data()));
  TERRACE_RETURN_IF_ERROR(
      CheckMargin(path, device, 0, marked ? kGivenMarkBytes : 0));
  return CheckMargin(path, device, size - kMargin, 0);
}

absl::Status WriteMark(PersistDomain* domain, int64_t unsafe_shutdowns) {
  std::byte mark[kGivenMarkBytes];
  WriteGivenMark(reinterpret_cast<char*>(mark), unsafe_shutdowns);
  return domain->Copy(0, mark);
}

DaxDevice::DaxDevice(const std::string& path) : path_(path) {}

DaxDevice::~DaxDevice() {
  // A mapping may keep the open file for longer.
  if (opened_.ok()) flock(fd(), LOCK_UN);
}

absl::StatusOr<std::unique_ptr<DaxDevice>> DaxDevice::Open(
    const std::string& path, int64_t budget_bytes) {
  std::unique_ptr<DaxDevice> device(new DaxDevice(path));
  TERRACE_RETURN_IF_ERROR(device->OpenFile());
  TERRACE_ASSIGN_OR_RETURN(const PersistDomain::Shape shape,
                           PersistDomain::ShapeOf(device->fd(), NameOf(path)));
  TERRACE_RETURN_IF_ERROR(device->Lock());
  TERRACE_ASSIGN_OR_RETURN(device->space_, DaxSpace(path, shape, budget_bytes));
  device->alignment_ = shape.alignment > 0 ? shape.alignment : kBlockBytes;
  return device;
}

absl::Status DaxDevice::OpenFile() {
  opened_ =
      OwnDescriptor::Open(path_, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (!opened_.ok()) {
    return ErrnoError(NameOf(path_), "cannot be opened", errno, path_);
  }
  return absl::OkStatus();
}

absl::Status DaxDevice::Lock() {
  if (LockWithin(fd(), kLockPatience)) return absl::OkStatus();
  const int error = errno;
  return WithIoFault(
      absl::UnavailableError(absl::StrCat(
          NameOf(path_),
          ": another job uses it, or has it locked: ", ErrnoName(error))),
      {.error = error, .path = path_});
}

absl::Status DaxDevice::Claim(PersistDomain* domain,
                              const std::vector<Extent>& bad,
                              int64_t unsafe_shutdowns) {
  TERRACE_RETURN_IF_ERROR(CheckDaxMargins(path_, domain->bytes(), bad));
  const char* const before =
      reinterpret_cast<const char*>(domain->bytes().data());
  if (IsGivenMark(before)) unsafe_shutdowns_ = MarkedUnsafeShutdowns(before);
  return WriteMark(domain, unsafe_shutdowns);
}

}  // namespace terrace
