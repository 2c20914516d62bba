#include "runtime/mover/core.h"

#include <algorithm>
#include <utility>

#include "tiers/memory/spill/mapped_spill.h"

namespace terrace {
namespace {

TierId OtherMemory(size_t i) {
  return {TierKind::kDram, 1 + static_cast<int>(i)};
}

// Each is numbered among its kind.
std::vector<TierId> MappedIds(const CoreParts& parts) {
  std::vector<TierId> ids;
  for (const CoreMapped& each : parts.mapped) {
    const auto before =
        std::count_if(ids.begin(), ids.end(),
                      [&each](TierId id) { return id.kind == each.spec.kind; });
    ids.push_back({each.spec.kind, static_cast<int>(before)});
  }
  return ids;
}

RestingTiers MakeRestingTiers(CoreParts& parts,
                              const std::shared_ptr<Inbox>& inbox) {
  std::vector<std::unique_ptr<MappedTier>> mapped;
  const std::vector<TierId> ids = MappedIds(parts);
  for (size_t i = 0; i < parts.mapped.size(); ++i) {
    const CoreMapped& each = parts.mapped[i];
    mapped.push_back(std::make_unique<MappedTier>(
        MappedTierParts{.id = ids[i],
                        .spec = each.spec,
                        .medium = each.medium,
                        .background = each.background,
                        .events = inbox,
                        .clock = parts.clock,
                        .patience = parts.io_timeout}));
  }
  std::vector<std::unique_ptr<DiskTier>> disks;
  for (CorePath& path : parts.paths) {
    const TierId id = {TierKind::kDisk, static_cast<int>(disks.size())};
    disks.push_back(std::make_unique<DiskTier>(
        DiskTierParts{.id = id,
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
  std::vector<CopyEnd> ends;
  const std::vector<TierId> ids = MappedIds(parts);
  for (size_t i = 0; i < ids.size(); ++i) {
    ends.push_back({ids[i], parts.mapped[i].medium.get()});
  }
  for (size_t i = 0; i < parts.other_memories.size(); ++i) {
    ends.push_back({OtherMemory(i), parts.other_memories[i].medium.get()});
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

TierId DeviceId(size_t k) { return {TierKind::kHbm, static_cast<int>(k)}; }

std::vector<std::unique_ptr<Transport>> MakeDeviceLinks(
    const CoreParts& parts, const std::shared_ptr<Inbox>& inbox) {
  std::vector<std::unique_ptr<Transport>> links;
  for (size_t k = 0; k < parts.devices.size(); ++k) {
    links.push_back(parts.devices[k].make_transport(
        DeviceId(k), [inbox] { inbox->Wake(); }));
  }
  return links;
}

WorkingTiers AllWorking(TierResidency& first, const OtherTiers& others) {
  std::vector<TierResidency*> all = {&first};
  for (const auto& each : others.residencies) all.push_back(each.get());
  return WorkingTiers(std::move(all));
}

TierList AllTiers(const WorkingTiers& working, RestingTiers& resting) {
  TierList all;
  for (TierResidency* const each : working.all()) all.Add(each->tier());
  for (const TierId id : resting.ids()) all.Add(resting.at(id));
  return all;
}

}  // namespace

OtherTiers::OtherTiers(CoreParts& core, const TierResidencyParts& parts,
                       Tier& memory) {
  const auto add = [&](std::unique_ptr<Tier> tier, const Tier* below,
                       std::unique_ptr<EvictionPolicy> eviction) {
    residencies.push_back(std::make_unique<TierResidency>(
        TierResidencyParts{.tier = tier.get(),
                           .below = below,
                           .table = parts.table,
                           .pins = parts.pins,
                           .planner = parts.planner,
                           .eviction = std::move(eviction)}));
    tiers.push_back(std::move(tier));
  };
  for (size_t i = 0; i < core.other_memories.size(); ++i) {
    CoreMemory& each = core.other_memories[i];
    add(std::make_unique<DramTier>(each.arena, each.spec,
                                   OtherMemory(i).number),
        nullptr, std::move(each.eviction));
  }
  for (size_t k = 0; k < core.devices.size(); ++k) {
    CoreDevice& device = core.devices[k];
    add(device.make_tier(DeviceId(k)), &memory, std::move(device.eviction));
  }
}

Core::Core(CoreParts parts)
    : clock(*parts.clock),
      heartbeat(parts.heartbeat != nullptr ? std::move(parts.heartbeat)
                                           : std::make_shared<Heartbeat>()),
      keeper(parts.keeper),
      inbox(std::make_shared<Inbox>([io = parts.io.get()] { io->Wake(); })),
      ports(inbox),
      pages(std::move(parts.pages)),
      dram(parts.arena, parts.memory),
      links(std::move(parts.io), MakeCopies(parts, inbox),
            MakeDeviceLinks(parts, inbox)),
      resting(MakeRestingTiers(parts, inbox)),
      pins(keeper),
      spill(kDramTier, parts.spill != nullptr
                           ? std::move(parts.spill)
                           : std::make_shared<MappedSpill>(parts.arena.data())),
      residency({.tier = &dram,
                 .table = &table,
                 .pins = &pins,
                 .planner = &planner,
                 .eviction = std::move(parts.eviction)}),
      others(parts, {.table = &table, .pins = &pins, .planner = &planner},
             dram),
      working(AllWorking(residency, others)),
      tiers(AllTiers(working, resting)),
      table(keeper),
      transfers({.links = &links,
                 .executor = parts.executor,
                 .inbox = inbox,
                 .tiers = &tiers,
                 .staging = &others.staging,
                 .resting = &resting,
                 .clock = parts.clock,
                 .transcript = parts.transcript,
                 .timeout = parts.io_timeout}),
      placement(resting, links, PriorsOf(parts)),
      write_back({.working = &working,
                  .staging = &others.staging,
                  .transfers = &transfers,
                  .placement = &placement,
                  .resting = &resting}),
      evictions({.ports = &ports,
                 .table = &table,
                 .working = &working,
                 .write_back = &write_back}),
      lent({.ports = &ports,
            .memory = &dram,
            .residency = &residency,
            .byte_pins = &byte_pins,
            .links = &links,
            .write_back = &write_back,
            .pages = pages.get(),
            .keeper = keeper}),
      registrar({.heartbeat = heartbeat.get(),
                 .ports = &ports,
                 .table = &table,
                 .resting = &resting,
                 .placement = &placement,
                 .transfers = &transfers,
                 .working = &working,
                 .write_back = &write_back,
                 .pins = &pins}),
      customers(*parts.clock, ports, parts.transcript, keeper),
      admission({.customers = &customers,
                 .table = &table,
                 .pins = &pins,
                 .byte_pins = &byte_pins,
                 .planner = &planner,
                 .working = &working,
                 .transfers = &transfers,
                 .write_back = &write_back,
                 .resting = &resting,
                 .links = &links,
                 .clock = parts.clock}),
      read_ahead({.table = &table,
                  .planner = &planner,
                  .working = &working,
                  .customers = &customers,
                  .transfers = &transfers,
                  .write_back = &write_back,
                  .admission = &admission,
                  .pins = &byte_pins,
                  .enabled = parts.prefetch}),
      passage({.next_number = [this] { return customers.NextNumber(); },
               .working = &working,
               .write_back = &write_back,
               .staging = &others.staging}),
      byte_admission({.ports = &ports,
                      .customers = &customers,
                      .table = &table,
                      .planner = &planner,
                      .working = &working,
                      .write_back = &write_back,
                      .pins = &byte_pins,
                      .spill = &spill,
                      .transfers = &transfers,
                      .passage = &passage,
                      .admission = &admission,
                      .read_ahead = &read_ahead}),
      prefetcher({.table = &table,
                  .planner = &planner,
                  .working = &working,
                  .transfers = &transfers,
                  .admission = &admission,
                  .enabled = parts.prefetch}),
      opener({.ports = &ports,
              .customers = &customers,
              .planner = &planner,
              .working = &working,
              .staging = &others.staging,
              .byte_pins = &byte_pins,
              .write_back = &write_back,
              .transfers = &transfers}),
      closing({.links = &links,
               .transfers = &transfers,
               .resting = &resting,
               .working = &working,
               .spill = &spill,
               .inbox = inbox.get(),
               .ports = &ports}),
      restoration({.heartbeat = heartbeat.get(),
                   .keeper = keeper,
                   .table = &table,
                   .resting = &resting,
                   .memory = &residency,
                   .spill = &spill,
                   .lent = &lent,
                   .pins = &pins,
                   .byte_pins = &byte_pins,
                   .planner = &planner,
                   .customers = &customers,
                   .byte_admission = &byte_admission,
                   .write_back = &write_back}) {}

void Core::Publish(uint64_t processed) {
  for (const int64_t queue : customers.Publish(processed)) planner.Close(queue);
}

absl::Time Core::NextDeadline() const {
  const absl::Time next =
      std::min(customers.NextDeadline(), opener.NextDeadline());
  if (closing.begun()) return next;
  return std::min({next, resting.NextEvent(), evictions.NextDeadline(),
                   lent.NextDeadline()});
}

Report Core::report() const {
  return Report({.inbox = inbox.get(),
                 .resting = &resting,
                 .links = &links,
                 .working = &working,
                 .staging = &others.staging,
                 .table = &table,
                 .pins = &pins,
                 .byte_pins = &byte_pins,
                 .spill = &spill,
                 .lent = &lent,
                 .transfers = &transfers,
                 .placement = &placement,
                 .customers = &customers,
                 .admission = &admission,
                 .byte_admission = &byte_admission});
}

}  // namespace terrace
