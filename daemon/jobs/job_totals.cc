#include "daemon/jobs/job_totals.h"

namespace terrace {

void JobTotals::Add(const Stats& stats) {
  for (const LinkStats& each : stats.links) {
    Link& link = links[{each.from, each.to}];
    link.bytes += each.bytes;
    link.seconds_blocked += each.seconds_blocked;
  }
  for (const TierStats& each : stats.tiers) {
    if (each.kind == TierKind::kDram) continue;
    Tier& tier = tiers[each.name];
    tier.bytes_read += each.traffic.bytes_read;
    tier.bytes_written += each.traffic.bytes_written;
    tier.requests_read += each.traffic.requests_read;
    tier.requests_written += each.traffic.requests_written;
    tier.retries += each.traffic.retries;
  }
  requests += stats.requests;
  demand_reads += stats.demand_reads;
  prefetch_reads += stats.prefetch_reads;
  prefetch_hits += stats.prefetch_hits;
  hits += stats.hits;
  evictions += stats.evictions;
}

void JobTotals::Add(const JobTotals& other) {
  for (const auto& [ends, each] : other.links) {
    Link& link = links[ends];
    link.bytes += each.bytes;
    link.seconds_blocked += each.seconds_blocked;
  }
  for (const auto& [name, each] : other.tiers) {
    Tier& tier = tiers[name];
    tier.bytes_read += each.bytes_read;
    tier.bytes_written += each.bytes_written;
    tier.requests_read += each.requests_read;
    tier.requests_written += each.requests_written;
    tier.retries += each.retries;
  }
  requests += other.requests;
  demand_reads += other.demand_reads;
  prefetch_reads += other.prefetch_reads;
  prefetch_hits += other.prefetch_hits;
  hits += other.hits;
  evictions += other.evictions;
}

}  // namespace terrace
