// The names below a disk path that are ours: a job's own directory,
//
//   <path>/terrace-<pid>-<random>/{lock,state}
//
// and, with `.stale` behind it, one that a killed job left and that is being
// removed. Nothing else is made, opened or removed. Thread-safe, stateless.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace terrace {

inline constexpr char kJobLockName[] = "lock";
inline constexpr char kJobStateName[] = "state";
inline constexpr char kStaleSuffix[] = ".stale";

// "terrace-<pid>-<16 hexadecimal digits>", which no other has.
std::string NewJobName();
// Whether one could have been made by the above, of this or another process.
bool IsJobName(absl::string_view name);
bool IsStaleJobName(absl::string_view name);

// Removes the state, the lock and the directory. The lock goes last: while it
// is there and held, no other process removes anything. 0, or the first errno;
// what is not there is no error.
int RemoveJobFiles(int path_fd, int directory_fd, const std::string& name);

}  // namespace terrace
