// How many messages a process had posted when the runtime's inbox had so many:
// what the mover says as of a number of the inbox's, the process hears as of a
// number of its own.
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace terrace {

class PostedCounts {
 public:
  void Note(uint64_t inbox, uint64_t process) {
    if (!counts_.empty() && counts_.back().inbox == inbox) {
      counts_.back().process = process;
      return;
    }
    counts_.push_back({inbox, process});
    // Of what is left out the process hears as of less than it had posted.
    if (counts_.size() > kMost) counts_.pop_front();
  }
  // Never more than it had posted by then. `inbox` does not fall.
  uint64_t ProcessCount(uint64_t inbox) {
    while (!counts_.empty() && counts_.front().inbox <= inbox) {
      last_ = counts_.front().process;
      counts_.pop_front();
    }
    return last_;
  }

 private:
  static constexpr size_t kMost = 65536;
  struct Count {
    uint64_t inbox = 0;
    uint64_t process = 0;
  };

  std::deque<Count> counts_;
  uint64_t last_ = 0;
};

}  // namespace terrace
