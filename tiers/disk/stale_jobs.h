// What killed jobs left on a disk path: claimed one by one, and removed piece
// by piece, so that no start waits for all of it.
//
// There is no lock on the path. A job's directory has its own (`lock`, flock),
// which the job holds as long as it lives. The process that gets it owns what
// is left, and holds it until that is gone. It renames the directory first, so
// that others can tell it from a job's and know that there will be room. Locks
// die with their process: a start goes on from wherever another was killed.
//
// On a file system that other hosts may have a lock may count on one of them
// only. There a job is dead that is unlocked and of this host, as its name
// says; any other's is left alone, and told: elsewhere(). One that is `.stale`
// was found dead by whoever renamed it.
//
//   <name>/ or <name>.stale/   may hold       then
//   nearly always              lock, state    its lock is tried
//   the state is removed       lock           the same
//   made or removed in part    nothing        it is removed, being empty
//
// One thread at a time, not always the same. A forked child removes nothing
// and gives no lock back.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/process.h"

namespace terrace {

class StaleJobs {
 public:
  // `path_fd`, of the path's directory, outlives this.
  explicit StaleJobs(int path_fd);
  // What was not removed yet is the next start's.
  ~StaleJobs();
  StaleJobs(const StaleJobs&) = delete;
  StaleJobs& operator=(const StaleJobs&) = delete;

  // Removes whole directories, or gives back the space of a part of one, up to
  // a piece of all; takes as long as the file system does. False: nothing is
  // left to do. What cannot be removed is left alone, as is what cannot be
  // opened.
  bool RemoveSome();

  // For a call that the disk has no room for: as RemoveSome, but where others
  // remove something, waits until they got on, a few seconds at most. False:
  // there will be no more room by this than there is now.
  bool MakeRoom();

  // "<name>: of process 12 on node7", of those that are left alone since they
  // may live on another host.
  std::vector<std::string> elsewhere() const;

  // Gives back what is claimed; from here on nothing is left to do.
  void Stop();

 private:
  bool MayLiveElsewhere(const std::string& name) const;
  std::vector<std::string> Names() const;
  bool ClaimNext();
  bool Claim(const std::string& name);
  int64_t Shrink();
  void Remove();
  void Release();
  int64_t BytesOfOthers() const;

  const Process process_;
  const int path_fd_;
  const bool locks_count_for_all_;
  bool stopped_ = false;
  int64_t removals_ = 0;  // of directories and parts
  // The claimed one; no name: there is none.
  std::string name_;
  OwnDescriptor directory_;
  OwnDescriptor lock_;
  OwnDescriptor state_;
  std::set<std::string> left_alone_;
};

}  // namespace terrace
