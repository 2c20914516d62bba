#include "runtime/mover/core.h"

#include <utility>

namespace terrace {
namespace {

RestingTiers MakeRestingTiers(CoreParts& parts,
                              const std::shared_ptr<Inbox>& inbox) {
  std::vector<std::unique_ptr<DiskTier>> tiers;
  for (CorePath& path : parts.paths) {
    DiskTierParts disk;
    disk.id = RestingTiers::first() + static_cast<int>(tiers.size());
    disk.file = std::move(path.file);
    disk.background = path.background;
    disk.events = inbox;
    disk.clock = parts.clock;
    disk.patience = parts.io_timeout;
    tiers.push_back(std::make_unique<DiskTier>(std::move(disk)));
  }
  return RestingTiers(std::move(tiers));
}

std::vector<PathPrior> PriorsOf(const CoreParts& parts) {
  std::vector<PathPrior> priors;
  for (const CorePath& path : parts.paths) priors.push_back(path.prior);
  return priors;
}

}  // namespace

Core::Core(CoreParts parts)
    : clock(*parts.clock),
      inbox(std::make_shared<Inbox>([io = parts.io.get()] { io->Wake(); })),
      dram(parts.arena, parts.memory),
      links(std::move(parts.io), 1 + static_cast<int>(parts.paths.size())),
      resting(MakeRestingTiers(parts, inbox)),
      residency({.tier = &dram,
                 .table = &table,
                 .pins = &pins,
                 .planner = &planner,
                 .eviction = std::move(parts.eviction)}),
      transfers({.links = &links,
                 .executor = parts.executor,
                 .inbox = inbox,
                 .dram = &dram,
                 .resting = &resting,
                 .clock = parts.clock,
                 .transcript = parts.transcript,
                 .timeout = parts.io_timeout}),
      placement(resting, links, PriorsOf(parts)),
      write_back({.residency = &residency,
                  .transfers = &transfers,
                  .placement = &placement,
                  .resting = &resting}),
      registrar({.table = &table,
                 .resting = &resting,
                 .placement = &placement,
                 .transfers = &transfers,
                 .residency = &residency,
                 .write_back = &write_back,
                 .pins = &pins}),
      customers(*parts.clock, parts.transcript),
      admission({.customers = &customers,
                 .table = &table,
                 .pins = &pins,
                 .planner = &planner,
                 .residency = &residency,
                 .transfers = &transfers,
                 .write_back = &write_back,
                 .resting = &resting,
                 .clock = parts.clock,
                 .inbox = inbox}),
      prefetcher({.table = &table,
                  .planner = &planner,
                  .residency = &residency,
                  .transfers = &transfers,
                  .admission = &admission,
                  .enabled = parts.prefetch}),
      opener({.customers = &customers,
              .planner = &planner,
              .residency = &residency,
              .write_back = &write_back,
              .transfers = &transfers}),
      closing({.links = &links,
               .transfers = &transfers,
               .resting = &resting,
               .dram = &dram,
               .inbox = inbox.get()}) {}

Report Core::report() const {
  return Report({.dram = &dram,
                 .resting = &resting,
                 .links = &links,
                 .residency = &residency,
                 .table = &table,
                 .pins = &pins,
                 .transfers = &transfers,
                 .placement = &placement,
                 .customers = &customers,
                 .admission = &admission});
}

}  // namespace terrace
