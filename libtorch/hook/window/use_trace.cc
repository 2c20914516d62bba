#include "libtorch/hook/window/use_trace.h"

#include <algorithm>
#include <utility>

namespace terrace {

void UseTrace::BeginStep() {
  is_endless_ = false;
  last_ = std::exchange(current_, {});
  position_ = 0;
  places_.clear();
  for (size_t i = 0; i < last_.size(); ++i) places_[last_[i]].push_back(i);
}

void UseTrace::Note(int64_t tensor) {
  if (is_endless_) return;
  if (!current_.empty() && current_.back() == tensor) return;
  if (current_.size() > 4 * last_.size() + kMostUses) {
    BeginStep();
    BeginStep();  // nothing is expected any more
    is_endless_ = true;
    return;
  }
  current_.push_back(tensor);
  const auto found = places_.find(tensor);
  if (found == places_.end()) return;
  const std::vector<size_t>& places = found->second;
  const auto next = std::lower_bound(places.begin(), places.end(), position_);
  if (next == places.end()) return;
  if (static_cast<int64_t>(*next - position_) > kMostPassed) return;
  position_ = *next + 1;
}

int64_t UseTrace::NextUse(int64_t tensor) const {
  const auto found = places_.find(tensor);
  if (found == places_.end()) return kUnknownUse;
  const std::vector<size_t>& places = found->second;
  const auto next = std::lower_bound(places.begin(), places.end(), position_);
  if (next != places.end()) return static_cast<int64_t>(*next - position_);
  return static_cast<int64_t>(last_.size() - position_ + places.front());
}

int64_t UseTrace::At(size_t ahead) const {
  return last_.empty() ? -1 : last_[(position_ + ahead) % last_.size()];
}

}  // namespace terrace
