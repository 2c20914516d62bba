// Runtime::Create, the only composition root: Options become parts.
#include "terrace/runtime.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/status_macros.h"
#include "runtime/local_runtime.h"
#include "runtime/machine/profile/tuning.h"
#include "runtime/memory/compute_threads.h"
#include "tiers/disk/disk_file.h"
#include "tiers/memory/host_arena.h"
#include "tiers/memory/topology.h"

namespace terrace {
namespace {

// Of all memory paths: they are mapped, and an address space has 2^47 bytes.
constexpr int64_t kMostMemoryPathBytes = int64_t{1} << 46;

constexpr int kMostWeight = 1000;

absl::Status CheckWeights(const IoWeights& weights) {
  for (const int weight :
       {weights.demand, weights.prefetch, weights.write_back}) {
    if (weight < 1 || weight > kMostWeight) {
      return absl::InvalidArgumentError(absl::StrCat(
          "weights of ", weights.demand, " for demand, ", weights.prefetch,
          " for prefetch and ", weights.write_back,
          " for write-back; each is 1 to ", kMostWeight));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const Options& options) {
  if (options.host_budget_bytes < 3 * ResidentBytes(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a host budget of ", options.host_budget_bytes,
                     " bytes; the least is ", 3 * ResidentBytes(1)));
  }
  if (!options.paths.empty() && options.memory_paths > 0) {
    return absl::InvalidArgumentError("paths and memory_paths together");
  }
  if (options.memory_paths < 0 || options.memory_path_bytes < 0 ||
      options.memory_path_bytes >
          kMostMemoryPathBytes / std::max(1, options.memory_paths)) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.memory_paths, " memory paths of ",
                     options.memory_path_bytes, " bytes"));
  }
  if (options.pace.read_bytes_per_second < 0 ||
      options.pace.write_bytes_per_second < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a pace of ", options.pace.read_bytes_per_second, " bytes/s read, ",
        options.pace.write_bytes_per_second, " written"));
  }
  if (options.threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.threads, " threads"));
  }
  if (options.numa_node.value_or(0) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory node ", *options.numa_node));
  }
  if (options.io_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an I/O timeout of ", absl::FormatDuration(options.io_timeout)));
  }
  TERRACE_RETURN_IF_ERROR(CheckWeights(options.io_weights));
  for (size_t i = 0; i < options.paths.size(); ++i) {
    if (options.paths[i].empty()) {
      return absl::InvalidArgumentError("a path is empty");
    }
    for (size_t j = 0; j < i; ++j) {
      if (options.paths[i] == options.paths[j]) {
        return absl::InvalidArgumentError(
            absl::StrCat("path '", options.paths[i], "' is named twice"));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::unique_ptr<DiskFile>>> OpenDisks(
    const Options& options) {
  std::vector<std::unique_ptr<DiskFile>> disks;
  for (const std::string& path : options.paths) {
    DiskFileOptions disk;
    disk.path = path;
    TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<DiskFile> opened,
                             OpenDiskFile(disk));
    disks.push_back(std::move(opened));
  }
  for (int i = 0; i < options.memory_paths; ++i) {
    disks.push_back(MakeMemoryDiskFile(i, options.memory_path_bytes));
  }
  return disks;
}

absl::StatusOr<MachineTuning> OpenProfile(const Options& options) {
  if (options.machine_profile.empty()) return MachineTuning();
  return ReadTuning(options.machine_profile, options.paths);
}

std::vector<PathPrior> PriorsOf(const MachineTuning& tuning) {
  std::vector<PathPrior> priors;
  for (const PathTuning& path : tuning.paths) {
    priors.push_back({path.read_bytes_per_second, path.write_bytes_per_second});
  }
  return priors;
}

IoQueueOptions QueueOptions(const IoWeights& weights,
                            const PathTuning& tuning) {
  IoQueueOptions queue;
  queue.weights[static_cast<int>(IoClass::kDemand)] = weights.demand;
  queue.weights[static_cast<int>(IoClass::kPrefetch)] = weights.prefetch;
  queue.weights[static_cast<int>(IoClass::kWriteBack)] = weights.write_back;
  if (tuning.in_flight_bytes > 0) {
    queue.in_flight_bytes = tuning.in_flight_bytes;
  }
  if (tuning.piece_bytes > 0) queue.piece_bytes = tuning.piece_bytes;
  return queue;
}

absl::StatusOr<std::unique_ptr<IoGroup>> OpenIo(
    const Options& options, const MachineTuning& tuning,
    const std::vector<std::unique_ptr<DiskFile>>& disks) {
  std::unique_ptr<IoEngine> engine;
  if (options.memory_paths > 0) {
    engine = MakeMemoryEngine(options.memory_paths, options.memory_path_bytes,
                              SystemClock());
  } else {
    std::vector<int> files;
    for (const auto& disk : disks) files.push_back(disk->fd());
    TERRACE_ASSIGN_OR_RETURN(engine, MakeEngine(options.engine, files));
  }
  if (options.pace.read_bytes_per_second > 0 ||
      options.pace.write_bytes_per_second > 0) {
    engine = MakePacedEngine(std::move(engine), options.pace, SystemClock());
  }
  auto io = std::make_unique<IoGroup>(std::move(engine), SystemClock());
  for (size_t i = 0; i < disks.size(); ++i) {
    const PathTuning known =
        i < tuning.paths.size() ? tuning.paths[i] : PathTuning();
    TERRACE_ASSIGN_OR_RETURN(
        [[maybe_unused]] int path,
        io->AddPath(disks[i]->info().file, disks[i]->fd(),
                    QueueOptions(options.io_weights, known)));
  }
  return io;
}

}  // namespace

absl::StatusOr<std::vector<TensorId>> Runtime::Register(
    absl::Span<const TensorSpec> specs) {
  std::vector<TensorId> ids;
  for (const TensorSpec& spec : specs) {
    const absl::StatusOr<TensorId> id = Register(spec);
    if (id.ok()) {
      ids.push_back(*id);
      continue;
    }
    for (const TensorId before : ids) Unregister(before).IgnoreError();
    return id.status();
  }
  return ids;
}

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Create(
    const Options& options) {
  TERRACE_RETURN_IF_ERROR(CheckOptions(options));
  TERRACE_ASSIGN_OR_RETURN(const Topology topology, ReadTopology());
  LocalRuntimeParts parts;
  parts.clock = &SystemClock();
  TERRACE_ASSIGN_OR_RETURN(const MachineTuning tuning, OpenProfile(options));
  if (!options.machine_profile.empty()) {
    parts.machine_profile =
        tuning.stale.empty() ? "holds" : absl::StrJoin(tuning.stale, "; ");
  }
  parts.mover.priors = PriorsOf(tuning);
  // Paths first: a wrong one is found before memory is populated.
  TERRACE_ASSIGN_OR_RETURN(parts.mover.disks, OpenDisks(options));
  TERRACE_ASSIGN_OR_RETURN(parts.mover.io,
                           OpenIo(options, tuning, parts.mover.disks));
  HostArenaOptions arena;
  arena.size_bytes = options.host_budget_bytes / 4096 * 4096;
  arena.huge_pages = options.huge_pages;
  arena.numa_node = options.numa_node.value_or(-1);
  arena.preferred_node = NearestNode(topology, topology.cpus);
  TERRACE_ASSIGN_OR_RETURN(parts.arena, HostArena::Create(arena));
  parts.mover.io->RegisterArena(parts.arena->bytes());
  TERRACE_ASSIGN_OR_RETURN(parts.executor,
                           MakeComputeThreads(options.threads, topology));
  parts.mover.eviction = MakeEvictionPolicy(options.eviction);
  parts.mover.prefetch = options.prefetch;
  parts.mover.io_timeout = options.io_timeout;
  try {
    return LocalRuntime::Start(std::move(parts));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start the mover's thread: ", error.what()));
  }
}

}  // namespace terrace
