#include "daemon/wire/tables/stats_tables.h"

#include <utility>

namespace terrace {
namespace {

flatbuffers::Offset<flat::Disk> Write(FlatBuilder& builder,
                                      const DiskStats& disk) {
  const auto directory = builder.CreateString(disk.directory);
  const auto file = builder.CreateString(disk.file);
  const auto reason = builder.CreateString(disk.direct_io_reason);
  std::vector<flatbuffers::Offset<flat::Job>> jobs;
  for (const std::string& each : disk.jobs_elsewhere) {
    jobs.push_back(flat::CreateJob(builder, builder.CreateString(each)));
  }
  const auto elsewhere = builder.CreateVector(jobs);
  return flat::CreateDisk(builder, directory, file, disk.direct_io, reason,
                          elsewhere);
}

flatbuffers::Offset<flat::Tier> Write(FlatBuilder& builder,
                                      const TierStats& tier) {
  const TierTraffic& moved = tier.traffic;
  const auto traffic = flat::CreateTraffic(
      builder, moved.bytes_read, moved.bytes_written, moved.requests_read,
      moved.requests_written, moved.retries, moved.continuations,
      moved.read_bytes_per_second, moved.write_bytes_per_second);
  const auto name = builder.CreateString(tier.name);
  const auto error = WriteOutcome(builder, tier.write_error);
  const auto disk = Write(builder, tier.disk);
  return flat::CreateTier(
      builder, name, static_cast<uint8_t>(tier.kind), tier.budget_bytes,
      tier.capacity_bytes, tier.used_bytes, tier.peak_bytes, tier.hits,
      tier.evictions, static_cast<uint8_t>(tier.state), tier.degraded, error,
      tier.tensors, tier.tensors_moved_in, traffic, disk, tier.pinned_bytes,
      tier.dirty_bytes, tier.clean_bytes);
}

flatbuffers::Offset<flat::Link> Write(FlatBuilder& builder,
                                      const LinkStats& link) {
  const auto from = builder.CreateString(link.from);
  const auto to = builder.CreateString(link.to);
  return flat::CreateLink(builder, from, to, link.bytes, link.seconds_blocked);
}

flatbuffers::Offset<flat::Host> Write(FlatBuilder& builder,
                                      const HostStats& host) {
  return flat::CreateHost(builder, host.budget_bytes, host.reserved_bytes,
                          host.used_bytes, host.peak_bytes,
                          host.huge_page_share, host.numa_node_asked,
                          host.numa_node_found, host.buffers_registered,
                          host.quarantined_bytes, host.leaked_bytes);
}

flatbuffers::Offset<flat::ByteQueues> Write(FlatBuilder& builder,
                                            const ByteQueueStats& bytes) {
  return flat::CreateByteQueues(builder, bytes.promised_bytes, bytes.recalls,
                                bytes.keeps, bytes.groups_beyond,
                                bytes.beyond_bytes, bytes.beyond_peak_bytes);
}

ByteQueueStats Read(const flat::ByteQueues& table) {
  return {.promised_bytes = table.promised_bytes(),
          .recalls = table.recalls(),
          .keeps = table.keeps(),
          .groups_beyond = table.groups_beyond(),
          .beyond_bytes = table.beyond_bytes(),
          .beyond_peak_bytes = table.beyond_peak_bytes()};
}

TierTraffic Read(const flat::Traffic& table) {
  return {.bytes_read = table.bytes_read(),
          .bytes_written = table.bytes_written(),
          .requests_read = table.requests_read(),
          .requests_written = table.requests_written(),
          .retries = table.retries(),
          .continuations = table.continuations(),
          .read_bytes_per_second = table.read_bytes_per_second(),
          .write_bytes_per_second = table.write_bytes_per_second()};
}

HostStats Read(const flat::Host& table) {
  return {.budget_bytes = table.budget_bytes(),
          .reserved_bytes = table.reserved_bytes(),
          .used_bytes = table.used_bytes(),
          .peak_bytes = table.peak_bytes(),
          .huge_page_share = table.huge_page_share(),
          .numa_node_asked = table.numa_node_asked(),
          .numa_node_found = table.numa_node_found(),
          .buffers_registered = table.buffers_registered(),
          .quarantined_bytes = table.quarantined_bytes(),
          .leaked_bytes = table.leaked_bytes()};
}

absl::StatusOr<DiskStats> Read(const flat::Disk& table, FlatReader& reader) {
  DiskStats disk;
  TERRACE_ASSIGN_OR_RETURN(disk.directory,
                           reader.Text(table.directory(), "disk's directory"));
  TERRACE_ASSIGN_OR_RETURN(disk.file, reader.Text(table.file(), "disk's file"));
  disk.direct_io = table.direct_io();
  TERRACE_ASSIGN_OR_RETURN(disk.direct_io_reason,
                           reader.TextOrNone(table.direct_io_reason()));
  TERRACE_RETURN_IF_ERROR(reader.Tables(
      table.jobs_elsewhere(), "jobs elsewhere",
      [&reader](const flat::Job& each) {
        return reader.Text(each.directory(), "job's directory");
      },
      &disk.jobs_elsewhere));
  return disk;
}

absl::StatusOr<TierStats> Read(const flat::Tier& table, FlatReader& reader) {
  TierStats tier;
  TERRACE_ASSIGN_OR_RETURN(tier.name, reader.Text(table.name(), "tier's name"));
  TERRACE_ASSIGN_OR_RETURN(tier.kind,
                           EnumOf(table.kind(), TierKind::kDisk, "tier"));
  tier.budget_bytes = table.budget_bytes();
  tier.capacity_bytes = table.capacity_bytes();
  tier.used_bytes = table.used_bytes();
  tier.peak_bytes = table.peak_bytes();
  tier.hits = table.hits();
  tier.evictions = table.evictions();
  TERRACE_ASSIGN_OR_RETURN(
      tier.state,
      EnumOf(table.state(), TierState::kUnreadable, "tier's state"));
  tier.degraded = table.degraded();
  TERRACE_RETURN_IF_ERROR(ReadOutcome(table.write_error(), reader,
                                      "tier's error", &tier.write_error));
  tier.tensors = table.tensors();
  tier.tensors_moved_in = table.tensors_moved_in();
  tier.pinned_bytes = table.pinned_bytes();
  tier.dirty_bytes = table.dirty_bytes();
  tier.clean_bytes = table.clean_bytes();
  if (table.traffic() == nullptr) return WrongMessage("has no traffic");
  tier.traffic = Read(*table.traffic());
  if (table.disk() == nullptr) return WrongMessage("has no disk");
  TERRACE_ASSIGN_OR_RETURN(tier.disk, Read(*table.disk(), reader));
  return tier;
}

absl::StatusOr<LinkStats> Read(const flat::Link& table, FlatReader& reader) {
  LinkStats link;
  TERRACE_ASSIGN_OR_RETURN(link.from, reader.Text(table.from(), "link's tier"));
  TERRACE_ASSIGN_OR_RETURN(link.to, reader.Text(table.to(), "link's tier"));
  link.bytes = table.bytes();
  link.seconds_blocked = table.seconds_blocked();
  return link;
}

}  // namespace

flatbuffers::Offset<flat::Stats> WriteStats(FlatBuilder& builder,
                                            const Stats& stats) {
  std::vector<flatbuffers::Offset<flat::Tier>> tiers;
  for (const TierStats& each : stats.tiers) {
    tiers.push_back(Write(builder, each));
  }
  std::vector<flatbuffers::Offset<flat::Link>> links;
  for (const LinkStats& each : stats.links) {
    links.push_back(Write(builder, each));
  }
  const auto tier_list = builder.CreateVector(tiers);
  const auto link_list = builder.CreateVector(links);
  const auto host = Write(builder, stats.host);
  const auto engine = builder.CreateString(stats.engine);
  const auto reason = builder.CreateString(stats.engine_reason);
  const auto profile = builder.CreateString(stats.machine_profile);
  const auto error = WriteOutcome(builder, stats.first_error);
  const auto bytes = Write(builder, stats.bytes);
  return flat::CreateStats(builder, tier_list, link_list, host, engine, reason,
                           profile, stats.window_bytes, stats.resident_bytes,
                           stats.requests, stats.demand_reads,
                           stats.prefetch_reads, stats.prefetch_hits,
                           stats.hits, stats.evictions, stats.late_completions,
                           stats.paced_completions, error, bytes);
}

absl::StatusOr<Stats> ReadStats(const flat::Stats& table, FlatReader& reader) {
  Stats stats;
  const auto read = [&reader](const auto& each) { return Read(each, reader); };
  TERRACE_RETURN_IF_ERROR(
      reader.Tables(table.tiers(), "tiers", read, &stats.tiers));
  TERRACE_RETURN_IF_ERROR(
      reader.Tables(table.links(), "links", read, &stats.links));
  if (table.host() == nullptr) return WrongMessage("has no host");
  stats.host = Read(*table.host());
  if (table.bytes() == nullptr) {
    return WrongMessage("has nothing of queues of bytes");
  }
  stats.bytes = Read(*table.bytes());
  TERRACE_ASSIGN_OR_RETURN(stats.engine, reader.TextOrNone(table.engine()));
  TERRACE_ASSIGN_OR_RETURN(stats.engine_reason,
                           reader.TextOrNone(table.engine_reason()));
  TERRACE_ASSIGN_OR_RETURN(stats.machine_profile,
                           reader.TextOrNone(table.machine_profile()));
  stats.window_bytes = table.window_bytes();
  stats.resident_bytes = table.resident_bytes();
  stats.requests = table.requests();
  stats.demand_reads = table.demand_reads();
  stats.prefetch_reads = table.prefetch_reads();
  stats.prefetch_hits = table.prefetch_hits();
  stats.hits = table.hits();
  stats.evictions = table.evictions();
  stats.late_completions = table.late_completions();
  stats.paced_completions = table.paced_completions();
  TERRACE_RETURN_IF_ERROR(ReadOutcome(table.first_error(), reader,
                                      "first error", &stats.first_error));
  return stats;
}

}  // namespace terrace
