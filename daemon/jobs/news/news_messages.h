// What a process is to be told, in messages of which none is too long: what a
// queue waited for may be more than one has room for.
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "daemon/wire/job_messages.h"

namespace terrace {

class NewsMessages {
 public:
  // Behind what was added before.
  void Add(JobNewsEntry entry);
  std::vector<JobNews> Take() { return std::exchange(messages_, {}); }

 private:
  void AddWhole(JobNewsEntry entry);
  // Leaves the last of its groups, which has room.
  template <typename News>
  void AddFirstOf(News& news);

  std::vector<JobNews> messages_;
  size_t pins_ = 0;  // of groups, in the last one
};

}  // namespace terrace
