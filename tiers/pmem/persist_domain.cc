#include "tiers/pmem/persist_domain.h"

#include <libpmem2.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/io_fault.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "tiers/pmem/media_facts.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

// The library's handles, deleted by a function of their address.
template <typename T, int (*Delete)(T**)>
class Handle {
 public:
  Handle() = default;
  ~Handle() {
    if (value_ != nullptr) Delete(&value_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  T* get() const { return value_; }
  T** address() { return &value_; }

 private:
  T* value_ = nullptr;
};

int DeleteBadBlocks(pmem2_badblock_context** context) {
  pmem2_badblock_context_delete(context);
  return 0;
}

// libpmem2 has a lock of its own, which a child that is made meanwhile would
// wait for for ever.
int DeleteMap(pmem2_map** map) {
  const ForkPause pause;
  return pmem2_map_delete(map);
}

// A child that lives would keep the open file with the mapping, and its lock.
int MapApart(pmem2_config* config, pmem2_source* source, pmem2_map** map) {
  const ForkPause pause;
  const int error = pmem2_map_new(map, config, source);
  if (error != 0) return error;
  madvise(pmem2_map_get_address(*map), pmem2_map_get_size(*map), MADV_DONTFORK);
  return 0;
}

using Config = Handle<pmem2_config, pmem2_config_delete>;
using Source = Handle<pmem2_source, pmem2_source_delete>;
using LibraryMap = Handle<pmem2_map, DeleteMap>;
using BadBlocks = Handle<pmem2_badblock_context, DeleteBadBlocks>;

// An error of the library is a negative errno, or one of its own far below.
absl::Status Failed(const std::string& name, const std::string& what,
                    int error) {
  constexpr int kLeastErrno = -4096;
  if (error > kLeastErrno) return ErrnoError(name, what, -error);
  const std::string text = absl::StrCat(name, ": ", what, ": libpmem2 ", error,
                                        " (", pmem2_errormsg(), ")");
  return WithIoFault(error == PMEM2_E_INVALID_FILE_TYPE
                         ? absl::InvalidArgumentError(text)
                         : absl::UnavailableError(text),
                     {.path = name});
}

absl::Status OpenSource(int fd, const std::string& name, Source* source) {
  const int error = pmem2_source_from_fd(source->address(), fd);
  if (error == 0) return absl::OkStatus();
  return Failed(name, "neither a regular file nor a DAX device", error);
}

StoreGranularity GranularityOf(pmem2_map* map) {
  switch (pmem2_map_get_store_granularity(map)) {
    case PMEM2_GRANULARITY_BYTE:
      return StoreGranularity::kByte;
    case PMEM2_GRANULARITY_CACHE_LINE:
      return StoreGranularity::kCacheLine;
    case PMEM2_GRANULARITY_PAGE:
      break;
  }
  return StoreGranularity::kPage;
}

}  // namespace

struct PersistDomain::Mapping {
  LibraryMap map;
  pmem2_memcpy_fn copy = nullptr;
  pmem2_persist_fn persist = nullptr;
};

absl::Status PersistDomain::CheckAvailable() { return CheckPmemEnvironment(); }

absl::StatusOr<std::unique_ptr<PersistDomain>> PersistDomain::Map(
    int fd, const std::string& name, int64_t size_bytes, Media media) {
  TERRACE_CHECK(size_bytes > 0);
  Source source;
  TERRACE_RETURN_IF_ERROR(OpenSource(fd, name, &source));
  Config config;
  auto mapping = std::make_unique<Mapping>();
  int error = pmem2_config_new(config.address());
  if (error == 0) {
    error = pmem2_config_set_required_store_granularity(
        config.get(), PMEM2_GRANULARITY_PAGE);  // any: it is judged below
  }
  if (error == 0) {
    error =
        pmem2_config_set_length(config.get(), static_cast<size_t>(size_bytes));
  }
  if (error == 0) {
    error = MapApart(config.get(), source.get(), mapping->map.address());
  }
  if (error != 0) {
    return Failed(name, absl::StrCat("cannot map ", size_bytes, " bytes"),
                  error);
  }
  std::unique_ptr<PersistDomain> domain(
      new PersistDomain(name, std::move(mapping)));
  TERRACE_RETURN_IF_ERROR(domain->Judge(fd, name, media));
  return domain;
}

PersistDomain::PersistDomain(const std::string& name,
                             std::unique_ptr<Mapping> mapping)
    : name_(name), mapping_(std::move(mapping)) {
  pmem2_map* const map = mapping_->map.get();
  mapping_->copy = pmem2_get_memcpy_fn(map);
  mapping_->persist = pmem2_get_persist_fn(map);
  bytes_ = {static_cast<std::byte*>(pmem2_map_get_address(map)),
            pmem2_map_get_size(map)};
  granularity_ = GranularityOf(map);
}

// Of a child: it has no such mapping, and may have another at that place.
PersistDomain::~PersistDomain() {
  if (!process_.IsCurrent()) static_cast<void>(mapping_.release());
}

// The library's word is not enough: it can be made to believe anything.
absl::Status PersistDomain::Judge(int fd, const std::string& name,
                                  Media media) {
  const int refused = TryMapSync(fd, static_cast<int64_t>(bytes_.size()));
  const std::string medium = FileSystemOf(fd);
  const std::string found = absl::StrCat(medium, ", granularity ",
                                         StoreGranularityName(granularity_));
  if (granularity_ != StoreGranularity::kPage) {
    if (refused != 0) {
      return WithIoFault(
          absl::UnavailableError(absl::StrCat(
              name, ": libpmem2 says ", found,
              ", but the kernel refuses MAP_SYNC: ", ErrnoName(refused))),
          {.error = refused, .path = name});
    }
    const std::string domains = PersistenceDomains();
    cause_ =
        absl::StrCat("MAP_SYNC on ", medium, ", persistence domain ", domains);
    if (granularity_ != StoreGranularity::kByte || domains == kCachesPersist) {
      return absl::OkStatus();
    }
    return WithIoFault(
        absl::UnavailableError(absl::StrCat(
            name, ": libpmem2 says ", found,
            ", but the kernel has the persistence domain ", domains)),
        {.path = name});
  }
  cause_ = refused == 0 ? absl::StrCat("libpmem2 flushes pages of ", medium)
                        : absl::StrCat("no MAP_SYNC on ", medium, ": ",
                                       ErrnoName(refused));
  if (media == Media::kUnsafe) return absl::OkStatus();
  return WithIoFault(
      absl::UnavailableError(absl::StrCat(
          name, ": no persistent memory: ", found, " (", cause_, ")")),
      {.error = refused, .path = name});
}

absl::StatusOr<PersistDomain::Shape> PersistDomain::ShapeOf(
    int fd, const std::string& name) {
  Source source;
  TERRACE_RETURN_IF_ERROR(OpenSource(fd, name, &source));
  size_t size = 0;
  size_t alignment = 0;
  int error = pmem2_source_size(source.get(), &size);
  if (error == 0) error = pmem2_source_alignment(source.get(), &alignment);
  if (error != 0) return Failed(name, "its size cannot be read", error);
  return Shape{static_cast<int64_t>(size), static_cast<int64_t>(alignment)};
}

absl::StatusOr<std::vector<Extent>> PersistDomain::BadRanges(
    int fd, const std::string& name) {
  Source source;
  TERRACE_RETURN_IF_ERROR(OpenSource(fd, name, &source));
  BadBlocks context;
  const std::string what = "its bad blocks cannot be read";
  int error = pmem2_badblock_context_new(context.address(), source.get());
  if (error != 0) return Failed(name, what, error);
  std::vector<Extent> ranges;
  pmem2_badblock block = {};
  while ((error = pmem2_badblock_next(context.get(), &block)) == 0) {
    ranges.push_back({static_cast<int64_t>(block.offset),
                      static_cast<int64_t>(block.length)});
  }
  if (error == PMEM2_E_NO_BAD_BLOCK_FOUND) return ranges;
  return Failed(name, what, error);
}

absl::StatusOr<int64_t> PersistDomain::UnsafeShutdowns(
    int fd, const std::string& name) {
  Source source;
  TERRACE_RETURN_IF_ERROR(OpenSource(fd, name, &source));
  uint64_t count = 0;
  const int error = pmem2_source_device_usc(source.get(), &count);
  if (error == 0) return static_cast<int64_t>(count);
  // Some modules tell a privileged user alone.
  if (error == PMEM2_E_NOSUPP || error == -EACCES || error == -EPERM) return -1;
  return Failed(name, "its unsafe shutdowns cannot be read", error);
}

std::byte* PersistDomain::At(int64_t offset, int64_t size_bytes) const {
  const auto all = static_cast<int64_t>(bytes_.size());
  TERRACE_CHECK(offset >= 0 && size_bytes >= 0 && size_bytes <= all &&
                offset <= all - size_bytes);
  return bytes_.data() + offset;
}

absl::Status PersistDomain::Copy(int64_t offset,
                                 absl::Span<const std::byte> from) {
  const auto size_bytes = static_cast<int64_t>(from.size());
  std::byte* const to = At(offset, size_bytes);
  if (from.empty()) return absl::OkStatus();
  if (granularity_ == StoreGranularity::kPage) {
    std::memcpy(to, from.data(), from.size());
    return Sync(offset, size_bytes);
  }
  mapping_->copy(to, from.data(), from.size(), PMEM2_F_MEM_NONTEMPORAL);
  return absl::OkStatus();
}

absl::Status PersistDomain::Persist(int64_t offset, int64_t size_bytes) {
  std::byte* const at = At(offset, size_bytes);
  if (size_bytes == 0) return absl::OkStatus();
  if (granularity_ == StoreGranularity::kPage) return Sync(offset, size_bytes);
  mapping_->persist(at, static_cast<size_t>(size_bytes));
  return absl::OkStatus();
}

// The library's own, where msync fails, ends the process.
absl::Status PersistDomain::Sync(int64_t offset, int64_t size_bytes) {
  const int64_t begin = RoundDown(offset, sysconf(_SC_PAGESIZE));
  const int64_t bytes = offset + size_bytes - begin;
  if (msync(bytes_.data() + begin, static_cast<size_t>(bytes), MS_SYNC) == 0) {
    return absl::OkStatus();
  }
  return WithIoFault(ErrnoError(name_,
                                absl::StrCat("msync failed: offset ", offset,
                                             ", ", size_bytes, " bytes"),
                                errno),
                     {.offset = offset});
}

}  // namespace terrace
