#include <prometheus/text_serializer.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/metrics/metrics_report.h"

namespace terrace {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

// The families of a text, in the order in which they are documented
// (docs/metrics.md). All are there from the beginning.
class Families {
 public:
  MetricFamily& Gauge(std::string name, std::string help) {
    return Add(std::move(name), std::move(help), MetricType::Gauge);
  }
  MetricFamily& Counter(std::string name, std::string help) {
    return Add(std::move(name), std::move(help), MetricType::Counter);
  }
  std::string Text() const {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, all_);
    return out.str();
  }

 private:
  MetricFamily& Add(std::string name, std::string help, MetricType type) {
    return all_.emplace_back(
        MetricFamily{std::move(name), std::move(help), type, {}});
  }

  std::vector<MetricFamily> all_;
};

template <typename Value>
void Set(MetricFamily& family, Value value, Labels labels = {}) {
  ClientMetric& metric = family.metric.emplace_back();
  metric.label = std::move(labels);
  const auto number = static_cast<double>(value);
  if (family.type == MetricType::Counter) {
    metric.counter.value = number;
  } else {
    metric.gauge.value = number;
  }
}

std::string UidText(uint32_t uid) { return absl::StrCat(uid); }

void AddDaemon(const MetricsReport& report, Families& families) {
  Set(families.Gauge("terrace_build_info", "1; which version this is"), 1,
      {{"version", report.version}});
  MetricFamily& phase = families.Gauge("terrace_phase", "1: it is in it");
  for (const DaemonPhase each :
       {DaemonPhase::kStarting, DaemonPhase::kServing, DaemonPhase::kDraining,
        DaemonPhase::kEnding}) {
    Set(phase, each == report.phase ? 1 : 0, {{"phase", PhaseName(each)}});
  }
  Set(families.Gauge("terrace_loops", "Loops of its threads that are watched"),
      report.loops);
  Set(families.Gauge("terrace_runtimes_unanswered",
                     "Runtimes of jobs whose numbers here are older"),
      report.unanswered);
}

void AddTiers(const MetricsReport& report, Families& families) {
  MetricFamily& budget =
      families.Gauge("terrace_tier_budget_bytes", "What jobs may have of it");
  for (const auto& each : report.tiers) {
    Set(budget, each.budget_bytes, {{"tier", each.name}});
  }
  MetricFamily& used =
      families.Gauge("terrace_tier_used_bytes", "Counted to jobs");
  for (const auto& each : report.tiers) {
    Set(used, each.used_bytes, {{"tier", each.name}});
  }
  MetricFamily& degraded = families.Gauge(
      "terrace_tier_degraded", "1: its last write failed, and it takes none");
  for (const auto& each : report.tiers) {
    Set(degraded, each.is_degraded ? 1 : 0, {{"tier", each.name}});
  }
  MetricFamily& fill = families.Gauge(
      "terrace_tier_bytes",
      "What a job has of a tier by its state; what nobody has is free, of no "
      "job");
  for (const auto& each : report.tiers) {
    Set(fill, std::max<int64_t>(each.budget_bytes - each.used_bytes, 0),
        {{"tier", each.name}, {"job", ""}, {"uid", ""}, {"state", "free"}});
  }
  for (const auto& job : report.jobs) {
    for (const auto& each : job.tiers) {
      const int64_t known =
          each.pinned_bytes + each.dirty_bytes + each.clean_bytes;
      const std::pair<const char*, int64_t> states[] = {
          {"pinned", each.pinned_bytes},
          {"dirty", each.dirty_bytes},
          {"clean", each.clean_bytes},
          {"free", std::max<int64_t>(each.counted_bytes - known, 0)}};
      for (const auto& [state, bytes] : states) {
        Set(fill, bytes,
            {{"tier", each.name},
             {"job", job.name},
             {"uid", UidText(job.uid)},
             {"state", state}});
      }
    }
  }
}

// Each tier below memory, of those that are there and those that were.
std::vector<std::string> Below(const MetricsReport& report) {
  std::vector<std::string> names;
  for (const auto& each : report.tiers) {
    if (!each.is_memory) names.push_back(each.name);
  }
  return names;
}

std::string MemoryOf(const MetricsReport& report) {
  for (const auto& each : report.tiers) {
    if (each.is_memory) return each.name;
  }
  return "";
}

JobTotals::Link LinkOf(const JobTotals& totals, const std::string& from,
                       const std::string& to) {
  const auto found = totals.links.find({from, to});
  return found == totals.links.end() ? JobTotals::Link() : found->second;
}

JobTotals::Tier TierOf(const JobTotals& totals, const std::string& name) {
  const auto found = totals.tiers.find(name);
  return found == totals.tiers.end() ? JobTotals::Tier() : found->second;
}

void AddMoved(const MetricsReport& report, const JobTotals& totals,
              const Labels& whose, MetricFamily& moved, MetricFamily& stall) {
  const std::string memory = MemoryOf(report);
  const auto with = [&whose](Labels labels) {
    labels.insert(labels.end(), whose.begin(), whose.end());
    return labels;
  };
  for (const std::string& each : Below(report)) {
    const JobTotals::Link up = LinkOf(totals, each, memory);
    const JobTotals::Link down = LinkOf(totals, memory, each);
    Set(moved, up.bytes, with({{"from", each}, {"to", memory}}));
    Set(moved, down.bytes, with({{"from", memory}, {"to", each}}));
    Set(stall, up.seconds_blocked, with({{"cause", "read"}, {"tier", each}}));
    Set(stall, down.seconds_blocked,
        with({{"cause", "write_back"}, {"tier", each}}));
  }
}

void AddMotion(const MetricsReport& report, Families& families) {
  MetricFamily moved{"terrace_moved_bytes_total",
                     "Moved from one tier to another, headers included",
                     MetricType::Counter,
                     {}};
  MetricFamily stall{"terrace_stall_seconds_total",
                     "How long queues were held up, by what ended it",
                     MetricType::Counter,
                     {}};
  AddMoved(report, report.totals, {}, moved, stall);
  families.Counter(moved.name, moved.help).metric = std::move(moved.metric);
  families.Counter(stall.name, stall.help).metric = std::move(stall.metric);
  MetricFamily& bytes = families.Counter(
      "terrace_io_bytes_total", "Read and written there, retries included");
  for (const std::string& each : Below(report)) {
    const JobTotals::Tier tier = TierOf(report.totals, each);
    Set(bytes, tier.bytes_read, {{"tier", each}, {"direction", "read"}});
    Set(bytes, tier.bytes_written, {{"tier", each}, {"direction", "written"}});
  }
  MetricFamily& requests = families.Counter(
      "terrace_io_requests_total", "Transfers that a tier was asked for");
  for (const std::string& each : Below(report)) {
    const JobTotals::Tier tier = TierOf(report.totals, each);
    Set(requests, tier.requests_read, {{"tier", each}, {"direction", "read"}});
    Set(requests, tier.requests_written,
        {{"tier", each}, {"direction", "written"}});
  }
  MetricFamily& retries = families.Counter("terrace_io_retries_total",
                                           "Of those, asked for once more");
  for (const std::string& each : Below(report)) {
    Set(retries, TierOf(report.totals, each).retries, {{"tier", each}});
  }
}

void AddUses(const JobTotals& totals, Families& families) {
  MetricFamily& reads =
      families.Counter("terrace_reads_total", "Tensors that were fetched");
  Set(reads, totals.demand_reads, {{"kind", "demand"}});
  Set(reads, totals.prefetch_reads, {{"kind", "ahead"}});
  Set(families.Counter("terrace_reads_ahead_used_total",
                       "Of those fetched ahead, asked for since"),
      totals.prefetch_hits);
  Set(families.Counter("terrace_hits_total",
                       "Tensors that were in place when asked for"),
      totals.hits);
  Set(families.Counter("terrace_evictions_total",
                       "Tensors that left memory for others"),
      totals.evictions);
  Set(families.Counter("terrace_messages_total",
                       "Messages to the runtimes of jobs"),
      totals.requests);
}

Labels JobLabels(const MetricsReport::Job& job) {
  return {{"job", job.name}, {"uid", UidText(job.uid)}};
}

void AddJobs(const MetricsReport& report, Families& families) {
  Set(families.Gauge("terrace_jobs", "Jobs that have processes here"),
      report.jobs.size());
  MetricFamily& processes =
      families.Gauge("terrace_job_processes", "Processes of a job");
  for (const auto& each : report.jobs) {
    Set(processes, each.processes, JobLabels(each));
  }
  MetricFamily moved{"terrace_job_moved_bytes_total",
                     "As terrace_moved_bytes_total, since the job began",
                     MetricType::Counter,
                     {}};
  MetricFamily stall{"terrace_job_stall_seconds_total",
                     "As terrace_stall_seconds_total, since the job began",
                     MetricType::Counter,
                     {}};
  for (const auto& each : report.jobs) {
    AddMoved(report, each.totals, JobLabels(each), moved, stall);
  }
  families.Counter(moved.name, moved.help).metric = std::move(moved.metric);
  families.Counter(stall.name, stall.help).metric = std::move(stall.metric);
  MetricFamily& quota = families.Gauge(
      "terrace_quota_bytes",
      "What a job may have: by its quota, its user's and the tier's budget");
  for (const auto& job : report.jobs) {
    for (const auto& each : job.tiers) {
      Labels labels = JobLabels(job);
      labels.push_back({"tier", each.name});
      Set(quota, each.quota_bytes, std::move(labels));
    }
  }
}

void AddUsers(const MetricsReport& report, Families& families) {
  Set(families.Gauge("terrace_connections",
                     "Connections, those of jobs' processes among them"),
      report.connections);
  MetricFamily& connections =
      families.Gauge("terrace_user_connections", "Connections of a user");
  for (const auto& each : report.users) {
    Set(connections, each.connections, {{"uid", UidText(each.uid)}});
  }
  MetricFamily& limit = families.Gauge("terrace_user_connection_limit",
                                       "What its quota says, or 64");
  for (const auto& each : report.users) {
    Set(limit, each.connection_limit, {{"uid", UidText(each.uid)}});
  }
  // Each code that something here is refused with.
  static constexpr std::pair<absl::StatusCode, const char*> kReasons[] = {
      {absl::StatusCode::kResourceExhausted, "limit"},
      {absl::StatusCode::kPermissionDenied, "permission"},
      {absl::StatusCode::kInvalidArgument, "message"},
      {absl::StatusCode::kUnavailable, "ending"}};
  MetricFamily& refusals = families.Counter(
      "terrace_refusals_total", "Connections and requests that were refused");
  int64_t others = 0;
  for (const auto& [code, count] : report.refusals) others += count;
  for (const auto& [code, reason] : kReasons) {
    const auto found = report.refusals.find(code);
    const int64_t count = found == report.refusals.end() ? 0 : found->second;
    others -= count;
    Set(refusals, count, {{"reason", reason}});
  }
  Set(refusals, others, {{"reason", "other"}});
}

void AddProcess(const MetricsReport& report, Families& families) {
  const MetricsReport::Process& process = report.process;
  MetricFamily& memory =
      families.Gauge("terrace_process_memory_bytes",
                     "Resident memory of the daemon; jobs' memory is shared");
  Set(memory, process.anonymous_bytes, {{"kind", "anonymous"}});
  Set(memory, process.file_bytes, {{"kind", "file"}});
  Set(memory, process.shared_bytes, {{"kind", "shared"}});
  Set(families.Gauge("process_resident_memory_bytes", "Of all kinds together"),
      process.anonymous_bytes + process.file_bytes + process.shared_bytes);
  Set(families.Gauge("process_open_fds", "Descriptors that it has"),
      process.descriptors);
  Set(families.Gauge("process_start_time_seconds",
                     "When it began, since the epoch"),
      process.start_seconds);
}

}  // namespace

std::string MetricsTextOf(const MetricsReport& report) {
  Families families;
  AddDaemon(report, families);
  AddTiers(report, families);
  AddMotion(report, families);
  AddUses(report.totals, families);
  AddJobs(report, families);
  AddUsers(report, families);
  AddProcess(report, families);
  return families.Text();
}

}  // namespace terrace
