// What runtimes of jobs have moved that are gone: all together, and by job as
// long as the job has processes here, so that no job's numbers fall when one of
// its processes ends.
//
// It belongs to one thread.
#pragma once

#include <map>

#include "daemon/jobs/job_totals.h"
#include "daemon/jobs/tier_ledger.h"

namespace terrace {

class JobCounts {
 public:
  void OnEnded(const JobName& job, const Stats& last) {
    all_.Add(last);
    of_jobs_[job].Add(last);
  }
  // The job has no process any more.
  void Forget(const JobName& job) { of_jobs_.erase(job); }

  const JobTotals& all() const { return all_; }
  JobTotals Of(const JobName& job) const {
    const auto found = of_jobs_.find(job);
    return found == of_jobs_.end() ? JobTotals() : found->second;
  }

 private:
  JobTotals all_;
  std::map<JobName, JobTotals> of_jobs_;
};

}  // namespace terrace
