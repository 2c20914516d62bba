// The links of a host's disks, which the runtimes of all jobs share by the
// weights of the configuration, and the devices that a pace makes of them.
//
// Thread-safe. Outlives the runtimes that it gave links to.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "aio/engine.h"
#include "aio/queue/link_share.h"
#include "base/mutex.h"
#include "daemon/config/daemon_config.h"
#include "daemon/links/shared_link.h"

namespace terrace {

class JobLinks {
 public:
  // One for each disk of the configuration. `names`: of its users, as UidsOf
  // has them.
  JobLinks(DaemonConfig config, std::map<uid_t, std::string> names);

  // How a process of the job comes to its share of the tier, which is one of
  // the configuration's disks.
  JoinLink LinkOf(const std::string& tier, uid_t uid, const std::string& job);
  // The engine, whose files are on these tiers, in this order, at the pace that
  // the configuration has for each.
  std::unique_ptr<IoEngine> Paced(std::unique_ptr<IoEngine> engine,
                                  const std::vector<std::string>& tiers) const;

  // Other weights hold from here on, also for who is there.
  void SetWeights(DaemonConfig config, std::map<uid_t, std::string> names);

 private:
  struct Disk {
    std::unique_ptr<SharedLink> link;
    std::shared_ptr<PacedDevice> pace;  // null: there is none
  };

  SharedLink::Weights WeightsOf(const SharedLink::Job& job) const;

  mutable Mutex mutex_;
  DaemonConfig config_ ABSL_GUARDED_BY(mutex_);
  std::map<uid_t, std::string> names_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Disk> disks_;  // by TierName
};

}  // namespace terrace
