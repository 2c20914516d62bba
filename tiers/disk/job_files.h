// The names below a disk path that are ours: a job's own directory,
//
//   <path>/terrace-<pid>-<random>-<host>/{lock,state}
//
// and, with `.stale` behind it, one that a killed job left and that is being
// removed. The host is base/system/host.h's text; earlier versions left
// it out. Nothing else is made, opened or removed. Thread-safe, stateless.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/system/host.h"

namespace terrace {

inline constexpr char kJobLockName[] = "lock";
inline constexpr char kJobStateName[] = "state";
inline constexpr char kStaleSuffix[] = ".stale";

// Whose a directory is.
struct JobOwner {
  std::string pid;
  std::optional<Host> host;  // nothing: an earlier version's

  std::string Text() const;  // "process 12 on node7"
};

// "terrace-<pid>-<16 hexadecimal digits>-<host>", which no other has.
std::string NewJobName();
// Nothing: it could not have been made by the above, by any process.
std::optional<JobOwner> OwnerOfJob(absl::string_view name);
bool IsJobName(absl::string_view name);
bool IsStaleJobName(absl::string_view name);

// Removes the state, the lock and the directory. The lock goes last: while it
// is there and held, no other process removes anything. 0, or the first errno;
// what is not there is no error.
int RemoveJobFiles(int path_fd, int directory_fd, const std::string& name);

}  // namespace terrace
