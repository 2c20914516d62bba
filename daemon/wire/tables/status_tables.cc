#include "daemon/wire/tables/status_tables.h"

#include <algorithm>
#include <utility>

namespace terrace {
namespace {

flatbuffers::Offset<flat::JobUse> Write(FlatBuilder& builder,
                                        const DaemonStatus::Job& job) {
  std::vector<flatbuffers::Offset<flat::TierBytes>> tiers;
  for (const DaemonStatus::TierBytes& each : job.tiers) {
    tiers.push_back(flat::CreateTierBytes(
        builder, builder.CreateString(each.name), each.used_bytes,
        each.pinned_bytes, each.dirty_bytes, each.clean_bytes));
  }
  const auto name = builder.CreateString(job.name);
  return flat::CreateJobUse(builder, job.uid, name, job.processes,
                            builder.CreateVector(tiers), job.bytes_up,
                            job.bytes_down, job.stalled_seconds);
}

absl::StatusOr<DaemonStatus::Tier> Read(const flat::TierUse& table,
                                        FlatReader& reader) {
  DaemonStatus::Tier tier;
  TERRACE_ASSIGN_OR_RETURN(tier.name, reader.Text(table.name(), "tier's name"));
  tier.budget_bytes = table.budget_bytes();
  tier.used_bytes = table.used_bytes();
  if (tier.budget_bytes < 0 || tier.used_bytes < 0) {
    return WrongMessage("has a tier of less than no bytes");
  }
  TERRACE_ASSIGN_OR_RETURN(tier.fault, reader.TextOrNone(table.fault()));
  return tier;
}

absl::StatusOr<DaemonStatus::User> Read(const flat::UserUse& table,
                                        FlatReader& /*reader*/) {
  if (table.connections() < 0 || table.connection_limit() < 0) {
    return WrongMessage("has a user of less than no connections");
  }
  return DaemonStatus::User{table.uid(), table.connections(),
                            table.connection_limit()};
}

absl::StatusOr<DaemonStatus::TierBytes> Read(const flat::TierBytes& table,
                                             FlatReader& reader) {
  DaemonStatus::TierBytes tier;
  TERRACE_ASSIGN_OR_RETURN(tier.name, reader.Text(table.name(), "tier's name"));
  tier.used_bytes = table.used_bytes();
  tier.pinned_bytes = table.pinned_bytes();
  tier.dirty_bytes = table.dirty_bytes();
  tier.clean_bytes = table.clean_bytes();
  if (std::min({tier.used_bytes, tier.pinned_bytes, tier.dirty_bytes,
                tier.clean_bytes}) >= 0) {
    return tier;
  }
  return WrongMessage("has a tier of less than no bytes");
}

absl::StatusOr<DaemonStatus::Job> Read(const flat::JobUse& table,
                                       FlatReader& reader) {
  DaemonStatus::Job job;
  job.uid = table.uid();
  job.processes = table.processes();
  if (job.processes < 0) return WrongMessage("has less than no processes");
  job.bytes_up = table.bytes_up();
  job.bytes_down = table.bytes_down();
  job.stalled_seconds = table.stalled_seconds();
  TERRACE_ASSIGN_OR_RETURN(job.name, reader.Text(table.job(), "job's name"));
  TERRACE_RETURN_IF_ERROR(reader.Tables(
      table.tiers(), "job's tiers",
      [&reader](const flat::TierBytes& each) { return Read(each, reader); },
      &job.tiers));
  return job;
}

absl::StatusOr<DaemonStatus::Loop> Read(const flat::StoppedLoop& table,
                                        FlatReader& reader) {
  DaemonStatus::Loop loop;
  TERRACE_ASSIGN_OR_RETURN(loop.name, reader.Text(table.name(), "loop's name"));
  loop.process = table.process();
  loop.silent_for_ms = table.silent_for_ms();
  if (loop.silent_for_ms >= 0) return loop;
  return WrongMessage("has a loop that ends before it begins");
}

flat::EvictedPart PartOf(const Evicted::Part& part) {
  return {part.tensors, part.bytes};
}

absl::Status Read(const flat::EvictedPart* table, Evicted::Part* part) {
  if (table == nullptr) return WrongMessage("has no part of what was evicted");
  *part = {table->tensors(), table->bytes()};
  if (part->tensors >= 0 && part->bytes >= 0) return absl::OkStatus();
  return WrongMessage("has evicted less than no bytes");
}

absl::StatusOr<EvictionReport::Process> Read(const flat::EvictedProcess& table,
                                             FlatReader& reader) {
  EvictionReport::Process process{.process = table.process()};
  Evicted& evicted = process.evicted;
  TERRACE_RETURN_IF_ERROR(Read(table.gone(), &evicted.gone));
  TERRACE_RETURN_IF_ERROR(Read(table.pinned(), &evicted.pinned));
  TERRACE_RETURN_IF_ERROR(Read(table.moving(), &evicted.moving));
  TERRACE_RETURN_IF_ERROR(Read(table.wanted(), &evicted.wanted));
  TERRACE_RETURN_IF_ERROR(Read(table.in_windows(), &evicted.in_windows));
  TERRACE_RETURN_IF_ERROR(Read(table.unwritten(), &evicted.unwritten));
  TERRACE_ASSIGN_OR_RETURN(process.fault, reader.TextOrNone(table.fault()));
  return process;
}

}  // namespace

flatbuffers::Offset<flat::Status> WriteStatus(FlatBuilder& builder,
                                              const DaemonStatus& status) {
  std::vector<flatbuffers::Offset<flat::TierUse>> tiers;
  for (const DaemonStatus::Tier& each : status.tiers) {
    const auto name = builder.CreateString(each.name);
    flatbuffers::Offset<flatbuffers::String> fault;
    if (!each.fault.empty()) fault = builder.CreateString(each.fault);
    tiers.push_back(flat::CreateTierUse(builder, name, each.budget_bytes,
                                        each.used_bytes, fault));
  }
  std::vector<flatbuffers::Offset<flat::UserUse>> users;
  for (const DaemonStatus::User& each : status.users) {
    users.push_back(flat::CreateUserUse(builder, each.uid, each.connections,
                                        each.connection_limit));
  }
  std::vector<flatbuffers::Offset<flat::JobUse>> jobs;
  for (const DaemonStatus::Job& each : status.jobs) {
    jobs.push_back(Write(builder, each));
  }
  std::vector<flatbuffers::Offset<flat::StoppedLoop>> stopped;
  for (const DaemonStatus::Loop& each : status.stopped) {
    stopped.push_back(
        flat::CreateStoppedLoop(builder, builder.CreateString(each.name),
                                each.process, each.silent_for_ms));
  }
  const auto version = builder.CreateString(status.version);
  const auto phase = builder.CreateString(status.phase);
  const auto all_tiers = builder.CreateVector(tiers);
  const auto all_users = builder.CreateVector(users);
  const auto all_jobs = builder.CreateVector(jobs);
  return flat::CreateStatus(
      builder, version, status.pid, phase, status.silent_for_ms, all_tiers,
      all_users, all_jobs, status.loops, builder.CreateVector(stopped));
}

absl::StatusOr<DaemonStatus> ReadStatus(const flat::Status& table,
                                        FlatReader& reader) {
  DaemonStatus status;
  TERRACE_ASSIGN_OR_RETURN(status.version,
                           reader.Text(table.version(), "version"));
  TERRACE_ASSIGN_OR_RETURN(status.phase, reader.Text(table.phase(), "phase"));
  status.pid = table.pid();
  status.silent_for_ms = table.silent_for_ms();
  if (status.silent_for_ms < 0) return WrongMessage("ends before it begins");
  const auto read = [&reader](const auto& each) { return Read(each, reader); };
  TERRACE_RETURN_IF_ERROR(
      reader.Tables(table.tiers(), "tiers", read, &status.tiers));
  TERRACE_RETURN_IF_ERROR(
      reader.Tables(table.users(), "users", read, &status.users));
  TERRACE_RETURN_IF_ERROR(
      reader.Tables(table.jobs(), "jobs", read, &status.jobs));
  status.loops = table.loops();
  TERRACE_RETURN_IF_ERROR(
      reader.Tables(table.stopped(), "loops", read, &status.stopped));
  return status;
}

flatbuffers::Offset<flat::TensorsPage> WriteTensors(FlatBuilder& builder,
                                                    const TensorsPage& page) {
  std::vector<flatbuffers::Offset<flat::ListedTensor>> tensors;
  for (const ListedTensor& each : page.tensors) {
    const auto name = builder.CreateString(each.name);
    const auto tier = builder.CreateString(each.tier);
    tensors.push_back(
        flat::CreateListedTensor(builder, each.id.value, name, each.size_bytes,
                                 tier, static_cast<uint8_t>(each.state)));
  }
  const auto job = builder.CreateString(page.job);
  const auto fault = builder.CreateString(page.fault);
  return flat::CreateTensorsPage(builder, page.uid, job, page.process,
                                 builder.CreateVector(tensors), fault,
                                 page.next_session, page.next_after);
}

absl::StatusOr<TensorsPage> ReadTensors(const flat::TensorsPage& table,
                                        FlatReader& reader) {
  TensorsPage page;
  page.uid = table.uid();
  TERRACE_ASSIGN_OR_RETURN(page.job, reader.TextOrNone(table.job()));
  page.process = table.process();
  TERRACE_RETURN_IF_ERROR(reader.Tables(
      table.tensors(), "tensors",
      [&reader](
          const flat::ListedTensor& each) -> absl::StatusOr<ListedTensor> {
        ListedTensor tensor{.id = {each.id()}, .size_bytes = each.size_bytes()};
        TERRACE_ASSIGN_OR_RETURN(tensor.name,
                                 reader.Text(each.name(), "tensor's name"));
        TERRACE_ASSIGN_OR_RETURN(tensor.tier, reader.TextOrNone(each.tier()));
        TERRACE_ASSIGN_OR_RETURN(
            tensor.state,
            EnumOf(each.state(), TensorState::kLost, "tensor's state"));
        return tensor;
      },
      &page.tensors));
  TERRACE_ASSIGN_OR_RETURN(page.fault, reader.TextOrNone(table.fault()));
  page.next_session = table.next_session();
  page.next_after = table.next_after();
  return page;
}

flatbuffers::Offset<flat::EvictionReport> WriteEviction(
    FlatBuilder& builder, const EvictionReport& report) {
  std::vector<flatbuffers::Offset<flat::EvictedProcess>> processes;
  for (const EvictionReport::Process& each : report.processes) {
    const flat::EvictedPart gone = PartOf(each.evicted.gone);
    const flat::EvictedPart pinned = PartOf(each.evicted.pinned);
    const flat::EvictedPart moving = PartOf(each.evicted.moving);
    const flat::EvictedPart wanted = PartOf(each.evicted.wanted);
    const flat::EvictedPart in_windows = PartOf(each.evicted.in_windows);
    const flat::EvictedPart unwritten = PartOf(each.evicted.unwritten);
    processes.push_back(flat::CreateEvictedProcessDirect(
        builder, each.process, &gone, &pinned, &moving, &wanted, &in_windows,
        &unwritten, each.fault.c_str()));
  }
  return flat::CreateEvictionReportDirect(builder, report.uid,
                                          report.job.c_str(), &processes);
}

absl::StatusOr<EvictionReport> ReadEviction(const flat::EvictionReport& table,
                                            FlatReader& reader) {
  EvictionReport report;
  report.uid = table.uid();
  TERRACE_ASSIGN_OR_RETURN(report.job, reader.TextOrNone(table.job()));
  const auto read = [&reader](const flat::EvictedProcess& each) {
    return Read(each, reader);
  };
  TERRACE_RETURN_IF_ERROR(
      reader.Tables(table.processes(), "processes", read, &report.processes));
  return report;
}

}  // namespace terrace
