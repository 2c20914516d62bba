#include "runtime/residency/neighbour_run.h"

#include <algorithm>
#include <iterator>

namespace terrace {

void NeighbourRun::Add(Tensor& tensor, const Extent& room) {
  if (complete_) return;
  neighbours_[room.offset] = {&tensor, room, neighbours_.size()};
  Join(room);
}

void NeighbourRun::Join(const Extent& room) {
  if (complete_) return;
  const Extent with_free = tier_.WithFreeBeside(room);
  int64_t begin = with_free.offset;
  int64_t end = with_free.end();
  auto next = runs_.upper_bound(begin);
  if (next != runs_.begin() && std::prev(next)->second >= begin) --next;
  while (next != runs_.end() && next->first <= end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    next = runs_.erase(next);
  }
  runs_[begin] = end;
  complete_ = end - begin >= bytes_;
  if (complete_) tensors_ = Needed(begin, end);
}

std::vector<Tensor*> NeighbourRun::Needed(int64_t begin, int64_t end) const {
  auto first = neighbours_.lower_bound(begin);
  auto last = neighbours_.lower_bound(end);  // behind it
  while (first != last) {
    const Neighbour& left = first->second;
    const Neighbour& right = std::prev(last)->second;
    const bool without_left = end - left.room.end() >= bytes_;
    const bool without_right = right.room.offset - begin >= bytes_;
    if (!without_left && !without_right) break;
    if (!without_right || (without_left && left.shown > right.shown)) {
      begin = left.room.end();
      ++first;
    } else {
      end = right.room.offset;
      --last;
    }
  }
  std::vector<Tensor*> needed;
  for (; first != last; ++first) needed.push_back(first->second.tensor);
  return needed;
}

}  // namespace terrace
