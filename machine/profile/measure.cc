#include <fcntl.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aio/engine.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "kernels/cuda/open_cuda.h"
#include "kernels/optimizer_kernels.h"
#include "kernels/pool_executor.h"
#include "machine/probe_file.h"
#include "machine/profile/device_rate.h"
#include "machine/profile/medium_rate.h"
#include "machine/profile/parallel_time.h"
#include "machine/profile/profile.h"
#include "machine/profile/rate_probe.h"
#include "machine/pseudo_files.h"
#include "machine/storage.h"
#include "terrace/adam.h"
#include "tiers/memory/far_medium.h"
#include "tiers/memory/host_arena.h"
#include "tiers/memory/topology.h"
#include "tiers/pmem/pmem_medium.h"
#include "tiers/system_error.h"

// The leak checker's, in builds that have it.
extern "C" void __lsan_ignore_object(const void* object) __attribute__((weak));

namespace terrace {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kWindow = 8 * kMiB;
constexpr int64_t kSmallestFile = 4 * kWindow;
// Each thread's memory is larger than its caches, all together no more than
// this.
constexpr int64_t kMostPerThread = 64 * kMiB;
constexpr int64_t kMostOfAll = 2048 * kMiB;

struct Load {
  LoadKind kind;
  int64_t piece_bytes;
  int64_t window_bytes;
};
// Full windows of each size and mix; then one piece alone, whose latency is
// the device's own.
constexpr Load kLoads[] = {
    {LoadKind::kRead, kMiB / 4, kWindow},
    {LoadKind::kRead, kMiB, kWindow},
    {LoadKind::kRead, 4 * kMiB, kWindow},
    {LoadKind::kWrite, kMiB / 4, kWindow},
    {LoadKind::kWrite, kMiB, kWindow},
    {LoadKind::kWrite, 4 * kMiB, kWindow},
    {LoadKind::kMixed, kMiB / 4, kWindow},
    {LoadKind::kMixed, kMiB, kWindow},
    {LoadKind::kMixed, 4 * kMiB, kWindow},
    {LoadKind::kRead, kMiB, kMiB},
    {LoadKind::kWrite, kMiB, kMiB},
};

absl::Status Refused(const std::string& path, const std::string& what) {
  return ErrnoError(absl::StrCat("path '", path, "'"), what, errno, path);
}

// As much as asked for, but not more than a quarter of what is free.
absl::StatusOr<int64_t> FileBytes(const std::string& path, int fd,
                                  int64_t asked) {
  struct statvfs space = {};
  if (fstatvfs(fd, &space) != 0) return Refused(path, "tells no free space");
  const auto free = static_cast<int64_t>(space.f_bavail * space.f_frsize);
  const int64_t bytes = std::min(asked, free / 4) / kWindow * kWindow;
  if (bytes < kSmallestFile) {
    return absl::ResourceExhaustedError(
        absl::StrCat("path '", path, "': only ", FormatBytes(free),
                     " are free, too few to measure it"));
  }
  if (const int error = posix_fallocate(fd, 0, bytes); error != 0) {
    errno = error;
    return Refused(path, absl::StrCat("no space for ", FormatBytes(bytes)));
  }
  return bytes;
}

// What the kernel may still use has no owner from here on.
template <typename T>
void LeaveBehind(std::unique_ptr<T> owned) {
  const T* const left = owned.release();
  if (__lsan_ignore_object != nullptr) __lsan_ignore_object(left);
}

// Takes the arena with it where the path does not answer.
absl::StatusOr<PathProfile> MeasurePath(const std::string& path,
                                        const TuneOptions& options,
                                        std::unique_ptr<HostArena>& arena) {
  PathProfile profile;
  profile.path = path;
  const PathReport report = ProbePath(PseudoFiles(""), path);
  TERRACE_RETURN_IF_ERROR(report.status);
  for (const DriveReport& drive : report.drives) {
    profile.drives.push_back(IdentityOf(drive));
  }
  auto opened = std::make_unique<Descriptor>(OpenProbeFile(path));
  const Descriptor& file = *opened;
  if (file.get() < 0) return Refused(path, "cannot be written");
  // Where the file system cannot allocate, the C library writes the file block
  // by block, small ones that direct I/O would refuse.
  TERRACE_ASSIGN_OR_RETURN(const int64_t file_bytes,
                           FileBytes(path, file.get(), options.file_bytes));
  profile.direct_io =
      report.direct_io &&
      fcntl(file.get(), F_SETFL, fcntl(file.get(), F_GETFL) | O_DIRECT) == 0;
  TERRACE_ASSIGN_OR_RETURN(auto engine,
                           MakeEngine(EngineKind::kAuto, {file.get()}));
  engine->RegisterArena(arena->bytes());
  profile.engine = engine->info().name;
  TERRACE_ASSIGN_OR_RETURN(const int index, engine->AddFile(file.get()));
  const RateProbe probe = {.engine = engine.get(),
                           .file = index,
                           .file_bytes = file_bytes,
                           .arena = arena->bytes(),
                           .clock = &SystemClock(),
                           .path = path};
  absl::Status status = WriteOnce(probe);
  for (const Load& load : kLoads) {
    if (!status.ok()) break;
    auto rate = MeasureRate(probe, load.kind, load.piece_bytes,
                            load.window_bytes, options.per_rate);
    status = rate.status();
    if (rate.ok()) profile.rates.push_back(*std::move(rate));
  }
  if (absl::IsDeadlineExceeded(status)) {
    LeaveBehind(std::move(engine));
    LeaveBehind(std::move(opened));
    LeaveBehind(std::move(arena));
  }
  if (!status.ok()) return status;
  return profile;
}

// The median of some runs, the first of which touches the memory.
double MedianTime(Executor& executor, const std::function<void(int)>& work) {
  TimeOnAll(executor, work);
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) times.push_back(TimeOnAll(executor, work));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

absl::Status MeasureProcessor(Executor& executor, MachineProfile* profile) {
  const int threads = executor.parallelism();
  // The copy goes from one half to the other; the step has four arrays.
  const int64_t bytes =
      std::min(kMostPerThread, kMostOfAll / threads) / kMiB * kMiB;
  TERRACE_ASSIGN_OR_RETURN(const auto arena,
                           HostArena::Create({.size_bytes = bytes * threads}));
  const auto memory_of = [&](int thread) {
    return reinterpret_cast<float*>(arena->bytes().data() + bytes * thread);
  };
  const int64_t floats = bytes / int64_t{sizeof(float)};
  profile->threads = threads;
  profile->copy_bytes_per_second =
      static_cast<double>(bytes / 2 * threads) /
      MedianTime(executor, [&](int thread) {
        float* const memory = memory_of(thread);
        std::memcpy(memory, memory + floats / 2,
                    static_cast<size_t>(bytes / 2));
      });
  const AdamScalars scalars = MakeAdamScalars(AdamOptions(), 1);
  const int64_t elements = floats / 4;
  std::atomic<bool> finite = true;
  const double seconds = MedianTime(executor, [&](int thread) {
    float* const memory = memory_of(thread);
    AdamSpan span;
    span.parameter = memory;
    span.gradient = memory + elements;
    span.m = memory + 2 * elements;
    span.v = memory + 3 * elements;
    span.count = elements;
    if (!AdamUpdate(scalars, 1.0f, span)) finite = false;
  });
  if (!finite) return absl::InternalError("Adam's step of zeros is not finite");
  profile->adam_elements_per_second =
      static_cast<double>(elements * threads) / seconds;
  profile->instruction_set = InstructionSetName();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Medium>> OpenMedium(const TierSpec& tier,
                                                   const TuneOptions& options,
                                                   const Topology& topology) {
  const int64_t budget = tier.budget_bytes == 0
                             ? options.file_bytes
                             : std::min(tier.budget_bytes, options.file_bytes);
  if (tier.kind == TierKind::kFar) {
    return FarMedium::Open({.node = NodeOf(tier),
                            .budget_bytes = budget,
                            .near_node = NearestNode(topology, topology.cpus)});
  }
  return PmemMedium::Open({.place = tier.place,
                           .budget_bytes = budget,
                           .unsafe_media = options.unsafe_media});
}

absl::StatusOr<MediumRates> MeasureGpu(const TierSpec& tier,
                                       const TuneOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device,
                           OpenCuda(tier.place));
  return MeasureDevice(*device, options.per_rate);
}

absl::StatusOr<MediumRates> MeasureMapped(const TierSpec& tier,
                                          const TuneOptions& options,
                                          const Topology& topology,
                                          Executor& executor) {
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<Medium> medium,
                           OpenMedium(tier, options, topology));
  const absl::StatusOr<MediumRates> rates =
      MeasureMedium(*medium, executor, options.per_rate);
  const absl::Status removed = medium->Remove();
  if (rates.ok() && !removed.ok()) return removed;
  return rates;
}

absl::StatusOr<TierProfile> MeasureTier(const TierSpec& tier,
                                        const TuneOptions& options,
                                        const Topology& topology,
                                        Executor& executor) {
  TierProfile profile = {.tier = TierName(tier)};
  const absl::StatusOr<MediumRates> rates =
      tier.kind == TierKind::kHbm
          ? MeasureGpu(tier, options)
          : MeasureMapped(tier, options, topology, executor);
  if (!rates.ok()) {
    const absl::Status& why = rates.status();
    return Reworded(why, absl::StrCat("tier '", profile.tier,
                                      "': ", absl::string_view(why.message())));
  }
  profile.read_bytes_per_second = rates->read_bytes_per_second;
  profile.write_bytes_per_second = rates->write_bytes_per_second;
  return profile;
}

absl::Status CheckTiers(const std::vector<TierSpec>& tiers) {
  std::set<std::string> seen;
  for (const TierSpec& tier : tiers) {
    TERRACE_RETURN_IF_ERROR(CheckTier(tier));
    const std::string name = TierName(tier);
    if (tier.kind == TierKind::kDram || tier.kind == TierKind::kDisk) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tier '", name,
          "': edges between memory and hbm, far or pmem are measured; a disk "
          "is named as a path"));
    }
    if (!seen.insert(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tier '", name, "' is named twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status Check(const TuneOptions& options) {
  if (options.file_bytes < kSmallestFile) {
    return absl::InvalidArgumentError(
        absl::StrCat("a file of ", FormatBytes(options.file_bytes),
                     " is too small to measure, ", FormatBytes(kSmallestFile),
                     " is the least"));
  }
  if (options.per_rate <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("no time to measure a rate");
  }
  std::set<std::string> seen;
  for (const std::string& path : options.paths) {
    if (!seen.insert(path).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("path '", path, "' is named twice"));
    }
  }
  return CheckTiers(options.tiers);
}

}  // namespace

absl::StatusOr<MachineProfile> MeasureMachine(const TuneOptions& options) {
  TERRACE_RETURN_IF_ERROR(Check(options));
  MachineProfile profile;
  const PseudoFiles files("");
  profile.machine_id = files.Text("/etc/machine-id");
  profile.kernel = files.Text("/proc/sys/kernel/osrelease");
  profile.processor = files.Field("/proc/cpuinfo", "model name");
  profile.measured_at = absl::ToUnixSeconds(absl::Now());
  TERRACE_ASSIGN_OR_RETURN(const Topology topology, ReadTopology());
  TERRACE_ASSIGN_OR_RETURN(
      const auto executor,
      MakePoolExecutor(std::max(1, topology.cores), topology.cpus));
  TERRACE_RETURN_IF_ERROR(MeasureProcessor(*executor, &profile));
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<HostArena> arena,
                           HostArena::Create({.size_bytes = kWindow}));
  // Some drives store zeros without writing them.
  std::mt19937_64 random(profile.measured_at);
  for (size_t i = 0; i + sizeof(uint64_t) <= arena->bytes().size();
       i += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(arena->bytes().data() + i, &word, sizeof(word));
  }
  for (const std::string& path : options.paths) {
    TERRACE_ASSIGN_OR_RETURN(PathProfile measured,
                             MeasurePath(path, options, arena));
    profile.paths.push_back(std::move(measured));
  }
  for (const TierSpec& tier : options.tiers) {
    TERRACE_ASSIGN_OR_RETURN(TierProfile measured,
                             MeasureTier(tier, options, topology, *executor));
    profile.tiers.push_back(std::move(measured));
  }
  return profile;
}

}  // namespace terrace
