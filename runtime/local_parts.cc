#include "runtime/local_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/bytes.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "kernels/cuda/open_cuda.h"
#include "machine/profile/tuning.h"
#include "runtime/make_core_device.h"
#include "runtime/memory/compute_threads.h"
#include "tiers/disk/disk_file.h"
#include "tiers/memory/far_medium.h"
#include "tiers/memory/host_arena.h"
#include "tiers/memory/topology.h"
#include "tiers/pmem/pmem_medium.h"
#include "tiers/tier_options.h"

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
  if (options.io_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an I/O timeout of ", absl::FormatDuration(options.io_timeout)));
  }
  return CheckWeights(options.io_weights);
}

bool IsMapped(const TierSpec& tier) {
  return tier.kind == TierKind::kFar || tier.kind == TierKind::kPmem;
}

absl::StatusOr<MachineTuning> OpenProfile(const Options& options,
                                          const std::vector<TierSpec>& tiers) {
  if (options.machine_profile.empty()) return MachineTuning();
  std::vector<std::string> paths;
  std::vector<TierSpec> mapped;
  for (const TierSpec& tier : tiers) {
    if (tier.kind == TierKind::kDisk) paths.push_back(tier.place);
    if (IsMapped(tier)) mapped.push_back(tier);
  }
  return ReadTuning(options.machine_profile, paths, mapped);
}

IoQueueOptions QueueOptions(const IoWeights& weights,
                            const PathTuning& tuning) {
  IoQueueOptions queue;
  queue.weights[static_cast<int>(IoClass::kDemand)] = weights.demand;
  queue.weights[static_cast<int>(IoClass::kForeseen)] = weights.demand;
  queue.weights[static_cast<int>(IoClass::kPrefetch)] = weights.prefetch;
  queue.weights[static_cast<int>(IoClass::kWriteBack)] = weights.write_back;
  if (tuning.in_flight_bytes > 0) {
    queue.in_flight_bytes = tuning.in_flight_bytes;
  }
  if (tuning.piece_bytes > 0) queue.piece_bytes = tuning.piece_bytes;
  return queue;
}

absl::StatusOr<std::vector<LocalPath>> OpenPaths(
    const Options& options, absl::Span<const TierSpec> disks,
    const MachineTuning& tuning, std::vector<std::unique_ptr<DiskFile>> kept) {
  std::vector<LocalPath> paths;
  for (std::unique_ptr<DiskFile>& file : kept) {
    paths.emplace_back().file = std::move(file);
  }
  for (const TierSpec& tier : disks.subspan(paths.size())) {
    DiskFileOptions disk;
    disk.path = tier.place;
    disk.budget_bytes = tier.budget_bytes;
    TERRACE_ASSIGN_OR_RETURN(paths.emplace_back().file, OpenDiskFile(disk));
  }
  for (int i = 0; i < options.memory_paths; ++i) {
    paths.emplace_back().file =
        MakeMemoryDiskFile(i, options.memory_path_bytes);
  }
  for (size_t i = 0; i < paths.size(); ++i) {
    const PathTuning known =
        i < tuning.paths.size() ? tuning.paths[i] : PathTuning();
    paths[i].queue = QueueOptions(options.io_weights, known);
    paths[i].prior = {known.read_bytes_per_second,
                      known.write_bytes_per_second};
  }
  return paths;
}

absl::Span<const TierSpec> DisksOf(const std::vector<TierSpec>& tiers) {
  const auto first = std::find_if(
      tiers.begin(), tiers.end(),
      [](const TierSpec& tier) { return tier.kind == TierKind::kDisk; });
  return absl::MakeConstSpan(tiers).subspan(
      static_cast<size_t>(first - tiers.begin()));
}

absl::StatusOr<std::unique_ptr<Medium>> OpenMedium(const Options& options,
                                                   const TierSpec& tier,
                                                   int near_node) {
  if (tier.kind == TierKind::kFar) {
    return FarMedium::Open({.node = NodeOf(tier),
                            .budget_bytes = tier.budget_bytes,
                            .huge_pages = options.huge_pages,
                            .near_node = near_node});
  }
  return PmemMedium::Open({.place = tier.place,
                           .budget_bytes = tier.budget_bytes,
                           .unsafe_media = options.unsafe_media});
}

absl::StatusOr<std::vector<LocalMapped>> OpenMapped(
    const Options& options, const std::vector<TierSpec>& tiers,
    const Topology& topology, const MachineTuning& tuning) {
  int near_node = NodeOf(tiers.front());
  if (near_node < 0) near_node = NearestNode(topology, topology.cpus);
  std::vector<LocalMapped> mapped;
  for (const TierSpec& tier : tiers) {
    if (!IsMapped(tier)) continue;
    absl::StatusOr<std::unique_ptr<Medium>> medium =
        OpenMedium(options, tier, near_node);
    if (!medium.ok()) {
      const absl::Status& why = medium.status();
      return Reworded(why, absl::StrCat("tier '", TierText(tier), "': ",
                                        absl::string_view(why.message())));
    }
    const TierProfile known = mapped.size() < tuning.tiers.size()
                                  ? tuning.tiers[mapped.size()]
                                  : TierProfile();
    mapped.push_back(
        {.spec = tier,
         .medium = *std::move(medium),
         .prior = {known.read_bytes_per_second, known.write_bytes_per_second}});
  }
  return mapped;
}

absl::StatusOr<std::shared_ptr<Device>> OpenDevice(const TierSpec& hbm) {
  if (hbm.device == nullptr && absl::StartsWith(hbm.place, "cuda:")) {
    return OpenCuda(hbm.place);
  }
  if (hbm.device != nullptr && hbm.device->name() == hbm.place) {
    return hbm.device;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the device that was opened for it is ",
                   hbm.device == nullptr ? "none" : hbm.device->name()));
}

// Those that tiers name, whose memory they take.
absl::StatusOr<std::vector<std::shared_ptr<Device>>> OpenDevices(
    const Options& options, const std::vector<TierSpec>& tiers,
    LocalRuntimeParts* parts) {
  std::vector<std::shared_ptr<Device>> devices;
  for (const TierSpec& hbm : tiers) {
    if (hbm.kind != TierKind::kHbm) continue;
    absl::StatusOr<std::shared_ptr<Device>> device = OpenDevice(hbm);
    absl::Status status = device.status();
    if (status.ok()) {
      absl::StatusOr<CoreDevice> core = MakeCoreDevice(
          *device, hbm, *parts->clock, MakeEvictionPolicy(options.eviction));
      status = core.status();
      if (status.ok()) parts->devices.push_back(*std::move(core));
    }
    if (!status.ok()) {
      return Reworded(status,
                      absl::StrCat("tier '", TierText(hbm),
                                   "': ", absl::string_view(status.message())));
    }
    devices.push_back(*std::move(device));
  }
  return devices;
}

// One memory's arena; all devices copy from and to what the first has pinned.
absl::Status OpenMemory(const Options& options, const TierSpec& memory,
                        int preferred_node, int64_t growth_bytes,
                        std::optional<int64_t> shared_spill_bytes,
                        const std::vector<std::shared_ptr<Device>>& devices,
                        OwnDescriptor* kept, std::shared_ptr<HostArena>* arena,
                        PinnedMapping* pinned) {
  const HostArenaOptions asked = {
      .size_bytes = RoundDown(memory.budget_bytes, kBlockBytes),
      .growth_bytes = growth_bytes,
      .huge_pages = options.huge_pages,
      .numa_node = NodeOf(memory),
      .preferred_node = preferred_node,
      .shared = shared_spill_bytes.has_value(),
      .spill_bytes = shared_spill_bytes.value_or(0)};
  TERRACE_ASSIGN_OR_RETURN(
      *arena, kept != nullptr ? HostArena::Reopen(asked, std::move(*kept))
                              : HostArena::Create(asked));
  if (devices.empty()) return absl::OkStatus();
  absl::StatusOr<PinnedMapping> mapping =
      devices.front()->Pin(*arena, (*arena)->bytes());
  // A device that knows no pinned memory copies from any, if slower.
  if (absl::IsUnimplemented(mapping.status())) return absl::OkStatus();
  TERRACE_RETURN_IF_ERROR(mapping.status());
  *pinned = *std::move(mapping);
  return absl::OkStatus();
}

// Those beside the first.
absl::Status OpenOtherMemories(
    const Options& options, absl::Span<const TierSpec> tiers,
    const std::vector<std::shared_ptr<Device>>& devices,
    LocalRuntimeParts* parts) {
  for (const TierSpec& tier : tiers.subspan(1)) {
    if (tier.kind != TierKind::kDram) continue;
    LocalMemory memory;
    memory.spec = tier;
    memory.eviction = MakeEvictionPolicy(options.eviction);
    TERRACE_RETURN_IF_ERROR(OpenMemory(options, tier, /*preferred_node=*/-1,
                                       /*growth_bytes=*/0,
                                       /*shared_spill_bytes=*/std::nullopt,
                                       devices, /*kept=*/nullptr, &memory.arena,
                                       &memory.pinned));
    parts->other_memories.push_back(std::move(memory));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<IoEngine>> OpenEngine(
    const Options& options, const std::vector<LocalPath>& paths) {
  std::unique_ptr<IoEngine> engine;
  if (options.memory_paths > 0) {
    engine = MakeMemoryEngine(options.memory_paths, options.memory_path_bytes,
                              SystemClock());
  } else {
    std::vector<int> files;
    for (const LocalPath& path : paths) files.push_back(path.file->fd());
    TERRACE_ASSIGN_OR_RETURN(engine, MakeEngine(options.engine, files));
  }
  if (options.pace.read_bytes_per_second > 0 ||
      options.pace.write_bytes_per_second > 0) {
    engine = MakePacedEngine(std::move(engine), options.pace, SystemClock());
  }
  return engine;
}

}  // namespace

absl::StatusOr<LocalRuntimeParts> PartsOf(
    const Options& options, std::optional<int64_t> shared_spill_bytes,
    std::optional<KeptParts> kept) {
  TERRACE_RETURN_IF_ERROR(CheckOptions(options));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<TierSpec> tiers, TiersOf(options));
  const TierSpec& memory = tiers.front();
  const absl::Span<const TierSpec> disks = DisksOf(tiers);
  TERRACE_ASSIGN_OR_RETURN(const Topology topology, ReadTopology());
  LocalRuntimeParts parts;
  parts.clock = &SystemClock();
  TERRACE_ASSIGN_OR_RETURN(const MachineTuning tuning,
                           OpenProfile(options, tiers));
  if (!options.machine_profile.empty()) {
    parts.machine_profile =
        tuning.stale.empty() ? "holds" : absl::StrJoin(tuning.stale, "; ");
  }
  // Devices and paths first: a wrong one is found before memory is populated.
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::shared_ptr<Device>> devices,
                           OpenDevices(options, tiers, &parts));
  TERRACE_ASSIGN_OR_RETURN(parts.mapped,
                           OpenMapped(options, tiers, topology, tuning));
  std::vector<std::unique_ptr<DiskFile>> files;
  if (kept.has_value()) files = std::move(kept->files);
  TERRACE_ASSIGN_OR_RETURN(parts.paths,
                           OpenPaths(options, disks, tuning, std::move(files)));
  TERRACE_ASSIGN_OR_RETURN(parts.engine, OpenEngine(options, parts.paths));
  TERRACE_RETURN_IF_ERROR(
      OpenMemory(options, memory, NearestNode(topology, topology.cpus),
                 options.host_growth_bytes, shared_spill_bytes, devices,
                 kept.has_value() ? &kept->memory_file : nullptr, &parts.arena,
                 &parts.pinned));
  TERRACE_RETURN_IF_ERROR(OpenOtherMemories(options, tiers, devices, &parts));
  parts.pool = options.thread_pool;
  if (!parts.pool.valid()) {
    TERRACE_ASSIGN_OR_RETURN(parts.pool,
                             MakeComputeThreads(options.threads, topology));
  }
  parts.memory = memory;
  parts.eviction = MakeEvictionPolicy(options.eviction);
  parts.prefetch = options.prefetch;
  parts.io_timeout = options.io_timeout;
  return parts;
}

}  // namespace terrace
