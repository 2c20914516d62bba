#include "tiers/pmem/pmem_probe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "tiers/disk/state_file.h"
#include "tiers/pmem/bad_ranges.h"
#include "tiers/pmem/dax_device.h"
#include "tiers/pmem/media_facts.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

absl::StatusOr<PmemFacts> Mapped(int fd, const std::string& name,
                                 int64_t mapped_bytes, const PmemLook& look) {
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<PersistDomain> domain,
                           PersistDomain::Map(fd, name, mapped_bytes,
                                              PersistDomain::Media::kUnsafe));
  TERRACE_ASSIGN_OR_RETURN(const int64_t shutdowns,
                           PersistDomain::UnsafeShutdowns(fd, name));
  if (look) look(domain->bytes());
  return PmemFacts{.file = name,
                   .file_system = FileSystemOf(fd),
                   .granularity = domain->granularity(),
                   .cause = domain->cause(),
                   .unsafe_shutdowns = shutdowns};
}

// By a file without a name, which goes with its descriptor.
absl::StatusOr<PmemFacts> ProbeDirectory(const std::string& directory,
                                         const std::string& name,
                                         const PmemLook& look) {
  const int fd =
      open(directory.c_str(), O_RDWR | O_TMPFILE | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return ErrnoError(name, "cannot make a file", errno);
  const auto closed = absl::MakeCleanup([fd] { close(fd); });
  std::atomic<int64_t> progress = 0;
  TERRACE_RETURN_IF_ERROR(Preallocate(fd, name, 0, kBlockBytes, &progress));
  TERRACE_ASSIGN_OR_RETURN(PmemFacts facts,
                           Mapped(fd, name, kBlockBytes, look));
  struct statvfs found = {};
  if (fstatvfs(fd, &found) != 0) {
    return ErrnoError(name, "its size cannot be read", errno);
  }
  facts.size_bytes = static_cast<int64_t>(found.f_blocks * found.f_frsize);
  return facts;
}

absl::StatusOr<PmemFacts> ProbeDevice(const std::string& path,
                                      const PmemLook& look) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return ErrnoError(path, "cannot be opened", errno);
  const auto closed = absl::MakeCleanup([fd] { close(fd); });
  TERRACE_ASSIGN_OR_RETURN(const PersistDomain::Shape shape,
                           PersistDomain::ShapeOf(fd, path));
  TERRACE_ASSIGN_OR_RETURN(const PmemSpace space, DaxSpace(path, shape, 0));
  TERRACE_ASSIGN_OR_RETURN(
      PmemFacts facts,
      Mapped(fd, path, std::max(shape.alignment, kBlockBytes), look));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<Extent> bad,
                           PersistDomain::BadRanges(fd, path));
  facts.size_bytes = space.usable.size_bytes;
  facts.bad_bytes = TotalBytes(BadRangesWithin(bad, space.usable));
  return facts;
}

}  // namespace

absl::StatusOr<PmemFacts> ProbePmem(const std::string& place,
                                    const PmemLook& look) {
  TERRACE_RETURN_IF_ERROR(PersistDomain::CheckAvailable());
  struct stat node = {};
  if (stat(place.c_str(), &node) != 0) {
    return ErrnoError(place, "cannot be looked at", errno);
  }
  if (S_ISDIR(node.st_mode)) return ProbeDirectory(place, place, look);
  if (S_ISCHR(node.st_mode)) return ProbeDevice(place, look);
  if (S_ISREG(node.st_mode)) {
    const auto folder = std::filesystem::path(place).parent_path();
    return ProbeDirectory(folder.empty() ? "." : folder.string(), place, look);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(place, ": no directory, regular file or DAX device"));
}

}  // namespace terrace
