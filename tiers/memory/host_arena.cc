#include "tiers/memory/host_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/system/memory_file.h"
#include "base/threads/own_thread.h"
#include "terrace/machine.h"
#include "tiers/memory/process_memory.h"
#include "tiers/memory/topology.h"
#include "tiers/system_error.h"

// Linux 5.14 and 6.1; absent from older C libraries' headers.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace terrace {
namespace {

// One call's worth: large against the call, small against an arena, so that
// two threads end together.
constexpr int64_t kPopulatePieceBytes = 16 * kHugePageBytes;
// More than any host has, and far less than an address space.
constexpr int64_t kMostSpillBytes = int64_t{1} << 45;

std::string Arena(int64_t size_bytes) {
  return absl::StrCat("host arena of ", size_bytes, " bytes");
}

// Populates pieces in turn until none is left or one failed. A kernel that
// cannot populate (EINVAL) has its pages touched instead.
void PopulatePieces(absl::Span<std::byte> area, std::atomic<size_t>& next,
                    std::atomic<int>& error) {
  while (error.load(std::memory_order_relaxed) == 0) {
    const size_t begin = next.fetch_add(kPopulatePieceBytes);
    if (begin >= area.size()) return;
    const absl::Span<std::byte> piece =
        area.subspan(begin, kPopulatePieceBytes);
    int result = 0;
    do {
      result = madvise(piece.data(), piece.size(), MADV_POPULATE_WRITE);
    } while (result != 0 && errno == EINTR);
    if (result == 0) continue;
    if (errno != EINVAL) {
      error.store(errno);
      return;
    }
    for (size_t at = 0; at < piece.size(); at += kBlockBytes) {
      *const_cast<volatile std::byte*>(&piece[at]) = std::byte{0};
    }
  }
}

// Two threads: on two cores twice as fast, and one is bound by the clearing of
// pages. Where a second thread cannot be had the first does it all.
absl::Status Populate(absl::Span<std::byte> area) {
  std::atomic<size_t> next{0};
  std::atomic<int> error{0};
  std::thread second;
  if (area.size() > kPopulatePieceBytes) {
    try {
      second = StartThread("terrace-arena",
                           [&] { PopulatePieces(area, next, error); });
    } catch (const std::system_error&) {
      // The work below covers it.
    }
  }
  PopulatePieces(area, next, error);
  if (second.joinable()) second.join();
  if (error.load() == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(Arena(static_cast<int64_t>(area.size())),
                   ": cannot be populated: ", ErrnoName(error.load())));
}

// Whole huge pages only: a tail can have none, and counts as had.
absl::Status RequireHugePages(absl::Span<std::byte> area) {
  const auto size = static_cast<int64_t>(area.size());
  const int64_t whole = RoundDown(size, kHugePageBytes);
  if (whole > 0 && HugeBytes(area) < whole) {
    // Best effort: the count below is the judge.
    madvise(area.data(), static_cast<size_t>(whole), MADV_COLLAPSE);
  }
  const int64_t huge = HugeBytes(area);
  if (whole > 0 && huge >= whole) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      Arena(size), ": huge pages are required, but ", huge, " of ", whole,
      " bytes have them: write 'madvise' to ",
      "/sys/kernel/mm/transparent_hugepage/enabled, free memory ('echo 1 > "
      "/proc/sys/vm/compact_memory'), or ask for them as 'preferred'"));
}

}  // namespace

absl::Status StayedOnNode(int64_t size_bytes, int required,
                          absl::Span<const int> nodes) {
  if (nodes.size() == 1 && nodes.front() == required) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      Arena(size_bytes), ": asked for memory node ", required,
      ", but once pinned its pages lie on ", absl::StrJoin(nodes, ", "),
      ": movable memory, which daxctl online-memory --no-movable mends"));
}

absl::StatusOr<std::unique_ptr<HostArena>> HostArena::Reserve(
    const HostArenaOptions& options, int64_t available_bytes) {
  constexpr int64_t kGuardBytes = kBlockBytes;
  constexpr int64_t kSlackBytes = kHugePageBytes + 2 * kGuardBytes;
  const int64_t least = options.growth_bytes > 0 ? 0 : 1;
  if (options.size_bytes < least ||
      options.size_bytes > INT64_MAX / 2 - kSlackBytes) {
    return absl::InvalidArgumentError(Arena(options.size_bytes));
  }
  if (options.growth_bytes < 0 ||
      options.growth_bytes > INT64_MAX / 2 - kSlackBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(Arena(options.size_bytes), ": growth by ",
                     options.growth_bytes, " bytes"));
  }
  if (options.spill_bytes < 0 || options.spill_bytes > kMostSpillBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(Arena(options.size_bytes), ": a spill of ",
                     options.spill_bytes, " bytes"));
  }
  const int64_t size = RoundUp(options.size_bytes, kBlockBytes);
  const int64_t growth = RoundUp(options.growth_bytes, kBlockBytes);
  const int64_t spill =
      options.shared ? RoundUp(options.spill_bytes, kBlockBytes) : 0;
  if (size > available_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Arena(size), ": only ", available_bytes,
                     " bytes of memory are available to this process"));
  }
  // The rest of the reservation stays inaccessible: it aligns the arena,
  // catches overruns, and keeps the kernel from merging neighbours into it.
  const int64_t mapping_bytes = size + growth + spill + kSlackBytes;
  void* mapping = mmap(nullptr, static_cast<size_t>(mapping_bytes), PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Arena(size), ": ", ErrnoName(errno)));
  }
  std::unique_ptr<HostArena> arena(new HostArena);
  arena->mapping_ = mapping;
  arena->mapping_bytes_ = mapping_bytes;
  const int64_t start = RoundUp(
      static_cast<int64_t>(reinterpret_cast<intptr_t>(mapping)) + kGuardBytes,
      kHugePageBytes);
  arena->bytes_ = absl::MakeSpan(reinterpret_cast<std::byte*>(start),
                                 static_cast<size_t>(size));
  arena->growth_bytes_ = growth;
  arena->begin_ = arena->bytes_.data();
  arena->spill_ = {size + growth, spill};
  arena->huge_pages_ = options.huge_pages;
  return arena;
}

absl::StatusOr<std::unique_ptr<HostArena>> HostArena::Create(
    const HostArenaOptions& options) {
  // Asked before, as the kernel's answer to too much is to kill.
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<HostArena> arena,
                           Reserve(options, AvailableMemoryBytes()));
  if (options.shared) {
    TERRACE_RETURN_IF_ERROR(arena->TakeMemoryFile(
        MakeMemoryFile("terrace-arena", arena->spill_.end())));
  }
  TERRACE_RETURN_IF_ERROR(arena->Build(options));
  if (arena->spill_.size_bytes > 0) TERRACE_RETURN_IF_ERROR(arena->MapSpill());
  return arena;
}

absl::StatusOr<std::unique_ptr<HostArena>> HostArena::Reopen(
    const HostArenaOptions& options, OwnDescriptor memory_file) {
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<HostArena> arena,
                           Reserve(options, /*available_bytes=*/INT64_MAX));
  if (!IsMemoryFile(memory_file, arena->spill_.end())) {
    return absl::InvalidArgumentError(
        absl::StrCat(Arena(arena->spill_.end()),
                     ": the memory file has another size, or it may change"));
  }
  TERRACE_RETURN_IF_ERROR(arena->TakeMemoryFile(std::move(memory_file)));
  arena->asked_node_ =
      options.numa_node >= 0 ? options.numa_node : options.preferred_node;
  TERRACE_RETURN_IF_ERROR(arena->Open(arena->bytes_));
  // What comes later lies there, as what is there does.
  arena->required_node_ = options.numa_node;
  if (arena->spill_.size_bytes > 0) TERRACE_RETURN_IF_ERROR(arena->MapSpill());
  return arena;
}

HostArena::~HostArena() {
  if (leaked_ || mapping_ == nullptr) return;
  TERRACE_CHECK(munmap(mapping_, static_cast<size_t>(mapping_bytes_)) == 0);
}

absl::Status HostArena::Grow(int64_t size_bytes) {
  if (size_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Arena(static_cast<int64_t>(bytes_.size())), ": growth by ",
                     size_bytes, " bytes"));
  }
  const bool is_beyond = size_bytes > growth_bytes_;
  const int64_t size =
      is_beyond ? size_bytes : RoundUp(size_bytes, kBlockBytes);
  const int64_t available = AvailableMemoryBytes();
  if (is_beyond || size > available) {
    return absl::ResourceExhaustedError(absl::StrCat(
        Arena(static_cast<int64_t>(bytes_.size())), ": growth by ", size,
        " bytes: ", is_beyond ? growth_bytes_ : available,
        is_beyond ? " bytes of addresses are reserved for it"
                  : " bytes of memory are available to this process"));
  }
  const absl::Span<std::byte> area(bytes_.data() + bytes_.size(),
                                   static_cast<size_t>(size));
  absl::Status status = Commit(area);
  if (status.ok() && huge_pages_ == HugePages::kRequired) {
    status = RequireHugePages(area);
  }
  if (!status.ok()) {
    Uncommit(area);
    return status;
  }
  bytes_ = absl::MakeSpan(bytes_.data(), bytes_.size() + area.size());
  growth_bytes_ -= size;
  return absl::OkStatus();
}

absl::Span<std::byte> HostArena::RangeAt(const Extent& range) const {
  TERRACE_CHECK(range.offset >= 0 && range.size_bytes > 0 &&
                range.end() <= spill_.end());
  return {begin_ + range.offset, static_cast<size_t>(range.size_bytes)};
}

absl::Status HostArena::MapSpill() {
  const absl::Span<std::byte> area = RangeAt(spill_);
  if (mprotect(area.data(), area.size(), PROT_READ | PROT_WRITE) != 0 ||
      madvise(area.data(), area.size(), MADV_DONTFORK) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Arena(spill_.size_bytes), ": ", ErrnoName(errno)));
  }
  madvise(area.data(), area.size(), MADV_NOHUGEPAGE);
  if (asked_node_ < 0) return absl::OkStatus();
  const Binding binding =
      required_node_ < 0 ? Binding::kPreferred : Binding::kStrict;
  const absl::Status bound = BindToNode(area, asked_node_, binding);
  return required_node_ < 0 ? absl::OkStatus() : bound;
}

absl::Status HostArena::PopulateRange(const Extent& range) {
  const int64_t available = AvailableMemoryBytes();
  if (range.size_bytes > available) {
    return absl::ResourceExhaustedError(
        absl::StrCat("memory of ", range.size_bytes, " bytes: only ", available,
                     " bytes of memory are available to this "
                     "process"));
  }
  absl::Status status = Populate(RangeAt(range));
  if (!status.ok()) EmptyRange(range);
  return status;
}

void HostArena::EmptyRange(const Extent& range) {
  const absl::Span<std::byte> area = RangeAt(range);
  madvise(area.data(), area.size(), MADV_REMOVE);
}

absl::Status HostArena::TakeMemoryFile(OwnDescriptor file) {
  const int64_t size = spill_.end();
  const bool is_mapped =
      file.ok() && mmap(begin_, static_cast<size_t>(size), PROT_NONE,
                        MAP_SHARED | MAP_FIXED, file.get(), 0) != MAP_FAILED;
  if (!is_mapped) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Arena(size), ": no memory file: ", ErrnoName(errno)));
  }
  memory_file_ = std::move(file);
  memory_file_bytes_ = size;
  return absl::OkStatus();
}

// Addresses again, as before.
void HostArena::Uncommit(absl::Span<std::byte> area) const {
  madvise(area.data(), area.size(),
          memory_file_.ok() ? MADV_REMOVE : MADV_DONTNEED);
  mprotect(area.data(), area.size(), PROT_NONE);
}

absl::Status HostArena::Build(const HostArenaOptions& options) {
  const auto size = static_cast<int64_t>(bytes_.size());
  required_node_ = options.numa_node;
  asked_node_ =
      options.numa_node >= 0 ? options.numa_node : options.preferred_node;
  if (size == 0) return absl::OkStatus();
  TERRACE_RETURN_IF_ERROR(Commit(bytes_));
  if (options.huge_pages == HugePages::kRequired) {
    TERRACE_RETURN_IF_ERROR(RequireHugePages(bytes_));
  }
  if (!options.inspect && options.numa_node < 0) return absl::OkStatus();
  huge_page_share_ =
      static_cast<double>(HugeBytes(bytes_)) / static_cast<double>(size);
  return VerifyNode(options.numa_node);
}

// A policy steers later faults only, and pinned pages cannot move: so bind,
// then advise, then populate, then look.
absl::Status HostArena::Commit(absl::Span<std::byte> area) {
  TERRACE_RETURN_IF_ERROR(Open(area));
  return Populate(area);
}

absl::Status HostArena::Open(absl::Span<std::byte> area) const {
  const auto size = static_cast<int64_t>(area.size());
  if (mprotect(area.data(), area.size(), PROT_READ | PROT_WRITE) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Arena(size), ": ", ErrnoName(errno)));
  }
  TERRACE_RETURN_IF_ERROR(BindArea(area));
  // Refused by a kernel without huge pages: then the share is 0, which is
  // what is reported and judged.
  madvise(area.data(), area.size(),
          huge_pages_ == HugePages::kOff ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  // A forked child must neither copy pages that a device writes to nor double
  // the budget.
  if (madvise(area.data(), area.size(), MADV_DONTFORK) != 0) {
    return absl::UnavailableError(absl::StrCat(
        Arena(size), ": cannot be kept from children: ", ErrnoName(errno)));
  }
  return absl::OkStatus();
}

absl::Status HostArena::BindArea(absl::Span<std::byte> area) const {
  if (asked_node_ < 0) return absl::OkStatus();
  if (required_node_ < 0) {
    // A kernel or container that refuses decides by itself; what it did is
    // found below.
    BindToNode(area, asked_node_, Binding::kPreferred).IgnoreError();
    return absl::OkStatus();
  }
  TERRACE_RETURN_IF_ERROR(BindToNode(area, asked_node_, Binding::kStrict));
  // Asked before, as the kernel's answer to too much is to kill.
  const absl::StatusOr<int64_t> available = AvailableNodeBytes(asked_node_);
  const auto size = static_cast<int64_t>(area.size());
  if (!available.ok() || size <= *available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(Arena(size), ": only ", *available,
                   " bytes are available on memory node ", asked_node_));
}

absl::Status HostArena::VerifyNode(int required) {
  // All pages where a promise depends on it.
  const absl::StatusOr<std::vector<int>> nodes =
      required >= 0 ? FindNodes(bytes_) : SampleNodes(bytes_);
  if (nodes.ok() && nodes->size() == 1) found_node_ = nodes->front();
  if (required < 0 || found_node_ == required) return absl::OkStatus();
  if (!nodes.ok()) return nodes.status();
  return absl::UnavailableError(absl::StrCat(
      Arena(static_cast<int64_t>(bytes_.size())), ": asked for memory node ",
      required, ", but its pages lie on ", absl::StrJoin(*nodes, ", ")));
}

void HostArena::EmptyMemoryFile(const OwnDescriptor& file) {
  struct stat found = {};
  if (fstat(file.get(), &found) != 0) return;
  fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
            found.st_size);
}

absl::Status HostArena::CheckPinned() const {
  if (required_node_ < 0) return absl::OkStatus();
  TERRACE_ASSIGN_OR_RETURN(const std::vector<int> nodes, FindNodes(bytes_));
  return StayedOnNode(static_cast<int64_t>(bytes_.size()), required_node_,
                      nodes);
}

}  // namespace terrace
