// How far somebody knows each stream to be: a stream's tasks are numbered from
// 1, and a clock holds, for each stream, the last of them that is over for
// whoever has the clock. One thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace terrace {

using AcceleratorStream = int32_t;  // from 0, over all devices

class VectorClock {
 public:
  int64_t Of(AcceleratorStream stream) const {
    const auto at = static_cast<size_t>(stream);
    return at < times_.size() ? times_[at] : 0;
  }
  bool Covers(AcceleratorStream stream, int64_t time) const {
    return Of(stream) >= time;
  }
  void Advance(AcceleratorStream stream, int64_t time) {
    const auto at = static_cast<size_t>(stream);
    if (at >= times_.size()) times_.resize(at + 1);
    times_[at] = std::max(times_[at], time);
  }
  void Join(const VectorClock& other) {
    times_.resize(std::max(times_.size(), other.times_.size()));
    for (size_t at = 0; at < other.times_.size(); ++at) {
      times_[at] = std::max(times_[at], other.times_[at]);
    }
  }

 private:
  std::vector<int64_t> times_;
};

}  // namespace terrace
