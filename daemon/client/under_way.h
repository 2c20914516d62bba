// Since when a process waits for what it has asked a daemon for: requests by
// their number, groups by their queue and tag, the first one first.
//
// A value; one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "daemon/wire/job_messages.h"

namespace terrace {

class UnderWay {
 public:
  void BeginRequest(uint64_t number, absl::Time now) {
    requests_[number] = now;
  }
  void EndRequest(uint64_t number) { requests_.erase(number); }
  void BeginGroup(int64_t queue, uint64_t tag, absl::Time now) {
    groups_[queue][tag].push_back(now);
  }
  void EndGroup(int64_t queue, uint64_t tag) {
    const auto found = groups_.find(queue);
    if (found == groups_.end()) return;
    const auto times = found->second.find(tag);
    if (times == found->second.end()) return;
    times->second.erase(times->second.begin());
    if (times->second.empty()) found->second.erase(times);
  }
  void EndGroups(int64_t queue, const std::vector<ReadyGroup>& groups) {
    for (const ReadyGroup& each : groups) EndGroup(queue, each.tag);
  }
  void EndQueue(int64_t queue) { groups_.erase(queue); }

  // Infinite: there is nothing. Looks at all.
  absl::Time oldest() const {
    absl::Time oldest = absl::InfiniteFuture();
    for (const auto& [number, begun] : requests_) {
      oldest = std::min(oldest, begun);
    }
    for (const auto& [queue, groups] : groups_) {
      for (const auto& [tag, times] : groups) {
        oldest = std::min(oldest, times.front());
      }
    }
    return oldest;
  }

 private:
  // A queue's, by tags: several may have one.
  using Groups =
      absl::flat_hash_map<uint64_t, absl::InlinedVector<absl::Time, 1>>;
  absl::flat_hash_map<uint64_t, absl::Time> requests_;
  absl::flat_hash_map<int64_t, Groups> groups_;
};

}  // namespace terrace
