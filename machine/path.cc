#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "machine/probe_file.h"
#include "machine/storage.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

constexpr int64_t kPathProbeBytes = 64 << 10;
// Every device that there is takes this.
constexpr int64_t kSafeAlignment = kBlockBytes;

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};

absl::Status Refused(const std::string& path, const std::string& what) {
  return ErrnoError(absl::StrCat("path '", path, "'"), what, errno, path);
}

void AskAlignment(int fd, PathReport* report) {
#ifdef STATX_DIOALIGN
  struct statx told = {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &told) == 0 &&
      (told.stx_mask & STATX_DIOALIGN) != 0) {
    report->told_memory_alignment = told.stx_dio_mem_align;
    report->told_offset_alignment = told.stx_dio_offset_align;
  }
#endif
}

// Reads of a file of kPathProbeBytes: the least alignments of offset and
// length, and of memory, that the kernel takes.
void TryAlignments(int fd, std::byte* buffer, PathReport* report) {
  for (int64_t align = 512; align <= kSafeAlignment; align *= 2) {
    const auto size = static_cast<size_t>(align);
    if (pread(fd, buffer, size, align) == align) {
      report->offset_alignment = align;
      break;
    }
  }
  for (int64_t align = 4; align <= kSafeAlignment; align *= 2) {
    if (pread(fd, buffer + align, kSafeAlignment, 0) == kSafeAlignment) {
      report->memory_alignment = align;
      break;
    }
  }
}

// Whether direct I/O moves data through `fd`, of which at least kPathProbeBytes
// may be written if `writes`.
void TryDirect(int fd, bool writes, PathReport* report) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) != 0) {
    report->direct_io_error =
        absl::StrCat("O_DIRECT is refused: ", ErrnoName(errno));
    return;
  }
  const std::unique_ptr<std::byte, FreeMemory> buffer(static_cast<std::byte*>(
      std::aligned_alloc(kSafeAlignment, kPathProbeBytes + kSafeAlignment)));
  if (buffer == nullptr) {
    report->direct_io_error = "no memory to try it";
    return;
  }
  std::fill_n(buffer.get(), kPathProbeBytes + kSafeAlignment, std::byte{0});
  const ssize_t moved = writes ? pwrite(fd, buffer.get(), kPathProbeBytes, 0)
                               : pread(fd, buffer.get(), kSafeAlignment, 0);
  if (moved < 0) {
    report->direct_io_error = absl::StrCat(
        "a direct ", writes ? "write" : "read", " failed: ", ErrnoName(errno));
    return;
  }
  report->direct_io = true;
  TryAlignments(fd, buffer.get(), report);
}

// Directories get a probe file; devices and files are only read.
absl::Status TryPath(const struct stat& found, PathReport* report) {
  const std::string& path = report->path;
  if (S_ISDIR(found.st_mode)) {
    report->kind = "directory";
    const Descriptor probe = OpenProbeFile(path);
    if (probe.get() < 0) return Refused(path, "cannot be written");
    AskAlignment(probe.get(), report);
    TryDirect(probe.get(), /*writes=*/true, report);
    return absl::OkStatus();
  }
  if (!S_ISREG(found.st_mode) && !S_ISBLK(found.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("path '", path, "': no directory, file or block device"));
  }
  report->kind = S_ISREG(found.st_mode) ? "file" : "block device";
  if (access(path.c_str(), R_OK | W_OK) != 0) {
    return Refused(path, "cannot be read and written");
  }
  const Descriptor opened(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (opened.get() < 0) return Refused(path, "cannot be opened");
  AskAlignment(opened.get(), report);
  TryDirect(opened.get(), /*writes=*/false, report);
  return absl::OkStatus();
}

void DescribeMount(const PseudoFiles& files, PathReport* report) {
  int64_t id = -1;
  struct statx about = {};
  if (statx(AT_FDCWD, report->path.c_str(), 0, STATX_MNT_ID, &about) == 0 &&
      (about.stx_mask & STATX_MNT_ID) != 0) {
    id = static_cast<int64_t>(about.stx_mnt_id);
  }
  char* const real = realpath(report->path.c_str(), nullptr);
  const std::string canonical = real == nullptr ? report->path : real;
  std::free(real);
  const std::vector<Mount> mounts = ReadMounts(files);
  const Mount* const mount = FindMount(mounts, id, canonical);
  if (mount == nullptr) return;
  report->mount_point = mount->point;
  report->file_system = mount->file_system;
  report->file_system_kind = KindOf(mount->file_system);
  report->source = mount->source;
  report->mount_options = mount->options;
}

}  // namespace

PathReport IdentifyPath(const PseudoFiles& files, const std::string& path) {
  PathReport report;
  report.path = path;
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) {
    report.status = Refused(path, "cannot be used");
    return report;
  }
  const bool is_device = S_ISBLK(found.st_mode);
  if (!is_device) DescribeMount(files, &report);
  const dev_t device = is_device ? found.st_rdev : found.st_dev;
  FindDrives(files, major(device), minor(device), report.source, &report);
  return report;
}

PathReport ProbePath(const PseudoFiles& files, const std::string& path) {
  PathReport report = IdentifyPath(files, path);
  struct stat found = {};
  if (!report.status.ok()) return report;
  if (stat(path.c_str(), &found) != 0) {
    report.status = Refused(path, "cannot be used");
    return report;
  }
  struct statvfs space = {};
  if (S_ISBLK(found.st_mode)) {
    report.total_bytes = report.drives.size() == 1 && report.stack.size() == 1
                             ? report.drives[0].size_bytes
                             : -1;
  } else if (statvfs(path.c_str(), &space) == 0) {
    report.total_bytes = static_cast<int64_t>(space.f_blocks * space.f_frsize);
    report.free_bytes = static_cast<int64_t>(space.f_bavail * space.f_frsize);
  }
  report.status = TryPath(found, &report);
  return report;
}

}  // namespace terrace
