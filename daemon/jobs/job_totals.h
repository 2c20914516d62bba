// What runtimes of jobs have moved and waited for since they began: their
// Stats, added up over those that are there and those that are gone.
//
// Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "terrace/stats.h"

namespace terrace {

struct JobTotals {
  struct Link {
    int64_t bytes = 0;
    double seconds_blocked = 0;
  };
  struct Tier {
    int64_t bytes_read = 0;
    int64_t bytes_written = 0;
    int64_t requests_read = 0;
    int64_t requests_written = 0;
    int64_t retries = 0;
  };

  // By the tiers that it leads from and to.
  std::map<std::pair<std::string, std::string>, Link> links;
  std::map<std::string, Tier> tiers;  // below memory
  int64_t requests = 0;
  int64_t demand_reads = 0;
  int64_t prefetch_reads = 0;
  int64_t prefetch_hits = 0;
  int64_t hits = 0;
  int64_t evictions = 0;

  void Add(const Stats& stats);
  void Add(const JobTotals& other);
};

}  // namespace terrace
