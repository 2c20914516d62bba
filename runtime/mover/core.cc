#include "runtime/mover/core.h"

#include <utility>

namespace terrace {
namespace {

RestingTiers MakeRestingTiers(CoreParts& parts,
                              const std::shared_ptr<Inbox>& inbox) {
  TierId id = RestingTiers::first();
  std::vector<std::unique_ptr<MappedTier>> mapped;
  for (const CoreMapped& each : parts.mapped) {
    mapped.push_back(std::make_unique<MappedTier>(
        MappedTierParts{.id = id++,
                        .spec = each.spec,
                        .medium = each.medium,
                        .background = each.background,
                        .events = inbox}));
  }
  std::vector<std::unique_ptr<DiskTier>> disks;
  for (CorePath& path : parts.paths) {
    disks.push_back(std::make_unique<DiskTier>(
        DiskTierParts{.id = id++,
                      .file = std::move(path.file),
                      .background = path.background,
                      .events = inbox,
                      .clock = parts.clock,
                      .patience = parts.io_timeout}));
  }
  return RestingTiers(std::move(mapped), std::move(disks));
}

std::unique_ptr<CopyTransport> MakeCopies(const CoreParts& parts,
                                          const std::shared_ptr<Inbox>& inbox) {
  TierId id = RestingTiers::first();
  std::vector<CopyEnd> ends;
  for (const CoreMapped& each : parts.mapped) {
    ends.push_back({id++, each.medium.get()});
  }
  return std::make_unique<CopyTransport>(std::move(ends), *parts.executor,
                                         *parts.clock,
                                         [inbox] { inbox->Wake(); });
}

std::vector<PathPrior> PriorsOf(const CoreParts& parts) {
  std::vector<PathPrior> priors;
  for (const CoreMapped& each : parts.mapped) priors.push_back(each.prior);
  for (const CorePath& path : parts.paths) priors.push_back(path.prior);
  return priors;
}

std::unique_ptr<Transport> MakeDeviceLink(const CoreParts& parts,
                                          const std::shared_ptr<Inbox>& inbox) {
  if (!parts.device.has_value()) return nullptr;
  return parts.device->make_transport(kHbmTier, [inbox] { inbox->Wake(); });
}

}  // namespace

OnDevice::OnDevice(CoreDevice* device, TierResidencyParts parts) {
  if (device == nullptr) return;
  tier = device->make_tier(kHbmTier);
  parts.tier = tier.get();
  parts.eviction = std::move(device->eviction);
  residency = std::make_unique<TierResidency>(std::move(parts));
}

Core::Core(CoreParts parts)
    : clock(*parts.clock),
      inbox(std::make_shared<Inbox>([io = parts.io.get()] { io->Wake(); })),
      ports(inbox),
      dram(parts.arena, parts.memory),
      links(std::move(parts.io), MakeCopies(parts, inbox),
            static_cast<int>(parts.mapped.size()),
            static_cast<int>(parts.paths.size()), MakeDeviceLink(parts, inbox)),
      resting(MakeRestingTiers(parts, inbox)),
      residency({.tier = &dram,
                 .table = &table,
                 .pins = &pins,
                 .planner = &planner,
                 .eviction = std::move(parts.eviction)}),
      device(parts.device.has_value() ? &*parts.device : nullptr,
             {.below = &dram,
              .table = &table,
              .pins = &pins,
              .planner = &planner}),
      working(&residency, device.residency.get()),
      transfers({.links = &links,
                 .executor = parts.executor,
                 .inbox = inbox,
                 .dram = &dram,
                 .hbm = device.tier.get(),
                 .staging = &device.staging,
                 .resting = &resting,
                 .clock = parts.clock,
                 .transcript = parts.transcript,
                 .timeout = parts.io_timeout}),
      placement(resting, links, PriorsOf(parts)),
      write_back({.working = &working,
                  .staging = &device.staging,
                  .transfers = &transfers,
                  .placement = &placement,
                  .resting = &resting}),
      registrar({.ports = &ports,
                 .table = &table,
                 .resting = &resting,
                 .placement = &placement,
                 .transfers = &transfers,
                 .working = &working,
                 .write_back = &write_back,
                 .pins = &pins}),
      customers(*parts.clock, ports, parts.transcript),
      admission({.customers = &customers,
                 .table = &table,
                 .pins = &pins,
                 .planner = &planner,
                 .working = &working,
                 .transfers = &transfers,
                 .write_back = &write_back,
                 .resting = &resting,
                 .links = &links,
                 .clock = parts.clock}),
      prefetcher({.table = &table,
                  .planner = &planner,
                  .working = &working,
                  .transfers = &transfers,
                  .admission = &admission,
                  .enabled = parts.prefetch}),
      opener({.ports = &ports,
              .customers = &customers,
              .table = &table,
              .planner = &planner,
              .working = &working,
              .dram = &dram,
              .staging = &device.staging,
              .write_back = &write_back,
              .transfers = &transfers}),
      closing({.links = &links,
               .transfers = &transfers,
               .resting = &resting,
               .dram = &dram,
               .hbm = device.tier.get(),
               .inbox = inbox.get(),
               .ports = &ports}) {}

Report Core::report() const {
  return Report({.dram = &dram,
                 .resting = &resting,
                 .links = &links,
                 .working = &working,
                 .staging = &device.staging,
                 .table = &table,
                 .pins = &pins,
                 .transfers = &transfers,
                 .placement = &placement,
                 .customers = &customers,
                 .admission = &admission});
}

}  // namespace terrace
