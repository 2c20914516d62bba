#include "bench/mapped_edge.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "bench/io/io_load.h"
#include "tiers/copy_transport.h"
#include "tiers/disk/state_file.h"
#include "tiers/memory/far_medium.h"
#include "tiers/pmem/persist_domain.h"
#include "tiers/pmem/pmem_medium.h"
#include "tiers/system_error.h"

namespace terrace::bench {
namespace {

constexpr int64_t kMappedPieceBytes = kMiB;

// Memory and memcpy, of somebody else's bytes.
class PlainMemory final : public Medium {
 public:
  explicit PlainMemory(absl::Span<std::byte> bytes) : bytes_(bytes) {}

  const std::string& name() const override { return name_; }
  int64_t size_bytes() const override {
    return static_cast<int64_t>(bytes_.size());
  }
  absl::Status Read(int64_t offset, absl::Span<std::byte> to) override {
    std::memcpy(to.data(), bytes_.data() + offset, to.size());
    return absl::OkStatus();
  }
  absl::Status Write(int64_t offset,
                     absl::Span<const std::byte> from) override {
    std::memcpy(bytes_.data() + offset, from.data(), from.size());
    return absl::OkStatus();
  }

 private:
  const std::string name_ = "memory";
  const absl::Span<std::byte> bytes_;
};

// A nameless file that is mapped: no bad blocks, no marks, no job.
class PlainFile final : public Medium {
 public:
  static absl::StatusOr<std::unique_ptr<Medium>> Make(
      const std::string& directory, int64_t size_bytes,
      PersistDomain::Media media) {
    auto file = std::unique_ptr<PlainFile>(new PlainFile(directory));
    file->fd_ =
        open(directory.c_str(), O_RDWR | O_TMPFILE | O_EXCL | O_CLOEXEC, 0600);
    if (file->fd_ < 0) {
      return ErrnoError(directory, "cannot make a file", errno);
    }
    std::atomic<int64_t> progress = 0;
    TERRACE_RETURN_IF_ERROR(
        Preallocate(file->fd_, directory, 0, size_bytes, &progress));
    TERRACE_ASSIGN_OR_RETURN(
        file->domain_,
        PersistDomain::Map(file->fd_, directory, size_bytes, media));
    return file;
  }
  ~PlainFile() override {
    if (fd_ >= 0) close(fd_);
  }

  const std::string& name() const override { return name_; }
  int64_t size_bytes() const override {
    return static_cast<int64_t>(domain_->bytes().size());
  }
  absl::Status Read(int64_t offset, absl::Span<std::byte> to) override {
    const ssize_t n = pread(fd_, to.data(), to.size(), offset);
    if (n == static_cast<ssize_t>(to.size())) return absl::OkStatus();
    return ErrnoError(name_, "the raw loop's pread is not whole",
                      n < 0 ? errno : EIO);
  }
  absl::Status Write(int64_t offset,
                     absl::Span<const std::byte> from) override {
    return domain_->Copy(offset, from);
  }

 private:
  explicit PlainFile(std::string name) : name_(std::move(name)) {}

  const std::string name_;
  int fd_ = -1;
  std::unique_ptr<PersistDomain> domain_;
};

// The first error of tasks that are on several threads.
class FirstError {
 public:
  void Update(const absl::Status& status) {
    if (status.ok()) return;
    MutexLock lock(mutex_);
    status_.Update(status);
  }
  absl::Status Take() {
    MutexLock lock(mutex_);
    return status_;
  }

 private:
  Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

MappedEdge::~MappedEdge() {
  if (medium_ != nullptr) medium_->Remove().IgnoreError();
}

absl::StatusOr<std::unique_ptr<MappedEdge>> MappedEdge::Make(
    int64_t size_bytes) {
  auto edge = std::unique_ptr<MappedEdge>(new MappedEdge);
  TERRACE_ASSIGN_OR_RETURN(edge->dram_,
                           HostArena::Create({.size_bytes = size_bytes}));
  std::memset(edge->dram().data(), 1, edge->dram().size());
  return edge;
}

absl::StatusOr<std::unique_ptr<MappedEdge>> MappedEdge::OfMemory(
    int64_t size_bytes) {
  TERRACE_ASSIGN_OR_RETURN(auto edge, Make(size_bytes));
  TERRACE_ASSIGN_OR_RETURN(edge->memory_,
                           HostArena::Create({.size_bytes = size_bytes}));
  edge->medium_ = std::make_unique<PlainMemory>(edge->memory_->bytes());
  edge->raw_ = std::make_unique<PlainMemory>(edge->memory_->bytes());
  edge->loop_name_ = "memcpy";
  TERRACE_RETURN_IF_ERROR(edge->Touch());
  return edge;
}

absl::StatusOr<std::unique_ptr<MappedEdge>> MappedEdge::Of(const TierSpec& tier,
                                                           int64_t size_bytes,
                                                           bool unsafe_media) {
  const int64_t bytes = RoundDown(
      tier.budget_bytes > 0 ? tier.budget_bytes : size_bytes, kBlockBytes);
  TERRACE_ASSIGN_OR_RETURN(auto edge, Make(bytes));
  if (tier.kind == TierKind::kFar) {
    TERRACE_ASSIGN_OR_RETURN(
        edge->medium_,
        FarMedium::Open({.node = NodeOf(tier), .budget_bytes = bytes}));
    TERRACE_ASSIGN_OR_RETURN(
        edge->memory_,
        HostArena::Create({.size_bytes = bytes, .numa_node = NodeOf(tier)}));
    edge->raw_ = std::make_unique<PlainMemory>(edge->memory_->bytes());
    edge->loop_name_ = "memcpy";
  } else {
    struct stat node = {};
    const bool is_directory =
        stat(tier.place.c_str(), &node) == 0 && S_ISDIR(node.st_mode);
    if (tier.kind != TierKind::kPmem || !is_directory) {
      return absl::InvalidArgumentError(
          absl::StrCat("tier '", TierText(tier),
                       "': copies are measured of far memory, of persistent "
                       "memory in a directory and of a disk's directory"));
    }
    // A file of its own; a block beside for the tier's own records.
    TERRACE_ASSIGN_OR_RETURN(auto medium,
                             PmemMedium::Open({.place = tier.place,
                                               .budget_bytes = bytes,
                                               .unsafe_media = unsafe_media}));
    const bool is_safe = medium->facts().granularity != StoreGranularity::kPage;
    edge->loop_name_ =
        is_safe ? "pmem2 memcpy and pread" : "memcpy, msync and pread";
    edge->medium_ = std::move(medium);
    TERRACE_ASSIGN_OR_RETURN(
        edge->raw_,
        PlainFile::Make(tier.place, bytes,
                        unsafe_media ? PersistDomain::Media::kUnsafe
                                     : PersistDomain::Media::kSafe));
  }
  TERRACE_RETURN_IF_ERROR(edge->Touch());
  return edge;
}

absl::Status MappedEdge::Touch() {
  const auto all = static_cast<int64_t>(dram().size());
  for (Medium* const each : {medium_.get(), raw_.get()}) {
    for (int64_t at = 0; at < all; at += kMappedPieceBytes) {
      TERRACE_RETURN_IF_ERROR(each->Write(
          at, dram().subspan(static_cast<size_t>(at),
                             static_cast<size_t>(kMappedPieceBytes))));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Sample> MappedEdge::RunTransport(Executor& executor, Way way) {
  Signal ended;
  CopyTransport transport({{kCopiedTier, medium_.get()}}, executor,
                          SystemClock(), [&ended] { ended.Set(); });
  return RunMoves(
      transport, [&ended] { ended.Look(); }, way, dram());
}

absl::StatusOr<Sample> MappedEdge::RunLoop(Executor& executor, Way way) {
  const auto all = static_cast<int64_t>(dram().size());
  Signal ended;
  FirstError error;
  std::atomic<int64_t> next = 0;
  std::atomic<int> left = executor.parallelism();
  const auto loop = [&] {
    for (int64_t at; (at = next.fetch_add(kMappedPieceBytes)) < all;) {
      const auto piece = dram().subspan(
          static_cast<size_t>(at),
          static_cast<size_t>(std::min(kMappedPieceBytes, all - at)));
      error.Update(IsUp(way, at) ? raw_->Read(at, piece)
                                 : raw_->Write(at, piece));
    }
    if (left.fetch_sub(1) == 1) ended.Set();
  };
  const Stopwatch watch;
  for (int i = 0; i < executor.parallelism(); ++i) {
    executor.Run(loop, Lane::kMotion);
  }
  ended.Await();
  TERRACE_RETURN_IF_ERROR(error.Take());
  return watch.Stop(all);
}

}  // namespace terrace::bench
